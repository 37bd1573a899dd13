-- settle: writes verdicts; the occurrences that they name leave their claim.
-- WITH  prelude, marks, dead
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 changes (hash)  6 crashes (hash)  7 counts (hash)
--       8 dead (zset)  9 dead:records (hash)  10 dead:order (zset)  11 dead:bytes (hash)
-- ARGV  1 now ms, "" = Redis' time  2 token  3 rest, keep or back  4 lease ms  5 dead_cap, number per lane  6 wake channel  7 lane
--       8 quiet, "" or 1: no wake-up for returned ones  9 ended, their number  10 ended_dead, how many of them (the last) are dead
--       11 nexts, their number  12 nexts_dead, how many of them (the last) are dead  13 backs, their number
--       14 begun, how many of them (the first) had begun  15 unreadable, how many of them (the last) are unreadable
--       16 named, all of them as "id due id due..."  17 dead_cap_bytes, per lane  18.. ended: id  19.. next: new due, id
--       20.. counted: id, counts  21.. back: due, id  22.. burial: key, value
-- REPLY { now, "settled", dropped, { skipped id... }, { changed id... } } | { now, "lost" }
-- KEEPS an occurrence that has left a claim cannot be ended through this claim again.

local due, leases, claims, tasks, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local crashes, counts, dead, dead_records, dead_order, dead_bytes = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11]
local token, rest, lease, cap, quiet = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[8] ~= ''
local cap_bytes = tonumber(ARGV[17])
local e, e_dead, n, n_dead = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local b, begun, unreadable = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local buried, named = e_dead + n_dead, e + n + b
if #KEYS ~= 11 or #ARGV ~= 17 + e + 4 * n + 2 * b + 2 * buried or named > 1000 or e_dead > e or n_dead > n
  or begun + unreadable > b then
  return redis.error_reply('BADCALL settle: the numbers of keys and arguments do not fit')
end

local entry = redis.call('HGET', claims, token)
if not entry then
  return { micros, 'lost' }
end
local full = first_write('HDEL', claims, '')
if full then
  return full
end

-- The short cuts. If nothing has left the claim and all its occurrences are named, neither its list nor the scores are read:
-- while the token exists, no other caller can change them. The same is true if the named ones are all that is left, or the
-- first of those. `behind` is what the claim holds afterwards.
local number = string.match(entry, '^%S+')
local unasked, behind = redis.call('HLEN', changes) == 0, ''
local whole = unasked and tonumber(number) == named
if unasked and not whole then
  local upto = #number + 2 + #ARGV[16]
  local front = string.sub(entry, #number + 2, upto)
  whole = front == ARGV[16]
  behind = front == ARGV[16] .. ' ' and rest == 'keep' and string.sub(entry, upto + 1) or ''
end
local short = whole or behind ~= ''

-- Otherwise: the occurrences of the claim, in order; the named ones; the puts and cancels made in the meantime.
local held, order, due_of, asked = {}, {}, {}, {}
if not short then
  for id, its_due in string.gmatch(string.sub(entry, #number + 2), '(%S+) (%S+)') do
    held[id] = its_due
    order[#order + 1] = id
  end
  for id, its_due in string.gmatch(ARGV[16], '(%S+) (%S+)') do
    due_of[id] = its_due
  end
  for i, change in ipairs(not unasked and #order > 0 and redis.call('HMGET', changes, unpack(order)) or {}) do
    asked[order[i]] = change
  end
end

local skipped, changed, asked_for, restored, removed = {}, {}, {}, {}, {}
local function apply(id)
  changed[#changed + 1] = id
  if asked[id] == 'cancelled' then
    removed[#removed + 1] = id
  else
    push(asked_for, asked[id], id)
  end
end

-- Whether the verdict on this id has to be written.
local function leaves(id, its_due)
  if held[id] ~= its_due then
    skipped[#skipped + 1] = id
    return false
  end
  held[id] = nil
  if asked[id] then
    apply(id)
  end
  return not asked[id]
end

-- The verdicts to write; after a short cut, all of them.
local next_at, back_at = 17 + e, 17 + e + 4 * n
local grave = back_at + 2 * b
local function slice(from, count)
  return short and { unpack(ARGV, from + 1, from + count) } or {}
end
local ended, nexts, counted = slice(17, e), slice(next_at, 2 * n), slice(next_at + 2 * n, 2 * n)
local backs, kinds, burials = slice(back_at, 2 * b), {}, slice(grave, 2 * buried)
local function bury(which)
  if which > 0 then
    push(burials, ARGV[grave + 2 * which - 1], ARGV[grave + 2 * which])
  end
end
for i = 1, short and 0 or e do
  local id = ARGV[17 + i]
  if leaves(id, due_of[id]) then
    ended[#ended + 1] = id
    bury(i - (e - e_dead))
  end
end
for i = 1, short and 0 or n do
  local at = next_at + 2 * i
  if leaves(ARGV[at], due_of[ARGV[at]]) then
    push(nexts, ARGV[at - 1], ARGV[at])
    push(counted, ARGV[at + 2 * n - 1], ARGV[at + 2 * n])
    bury(i > n - n_dead and e_dead + i - (n - n_dead) or 0)
  end
end
for i = 1, b do
  local its_due, id = ARGV[back_at + 2 * i - 1], ARGV[back_at + 2 * i]
  if short or leaves(id, its_due) then
    kinds[#kinds + 1] = i <= begun and 'begun' or i > b - unreadable and 'unreadable' or 'back'
    if not short then
      push(backs, its_due, id)
    end
  end
end

-- The occurrences without a verdict.
local left = {}
for i = 1, #order do
  local id = order[i]
  if held[id] and rest == 'keep' then
    push(left, id, held[id])
  elseif held[id] and asked[id] then
    apply(id)
  elseif held[id] then
    push(restored, held[id], id)
  end
end
if not short then
  behind = table.concat(left, ' ')
end

local any_mark = redis.call('HLEN', crashes) > 0
local writes_due = #nexts + #backs + #asked_for + #restored > 0
local head = writes_due and head_of(due)
if #ended > 0 then
  redis.call('ZREM', due, unpack(ended))
  redis.call('HDEL', tasks, unpack(ended))
  if redis.call('HLEN', counts) > 0 then
    redis.call('HDEL', counts, unpack(ended))
  end
  if any_mark then
    redis.call('HDEL', crashes, unpack(ended))
  end
end
if #nexts > 0 then
  redis.call('ZADD', due, 'XX', unpack(nexts))
  redis.call('HSET', counts, unpack(counted))
  for i = 2, any_mark and #nexts or 0, 2 do
    redis.call('HDEL', crashes, nexts[i])
  end
end
for _, list in ipairs({ backs, asked_for, restored }) do
  call_with(list, 'ZADD', due, 'XX')
end
if #backs > 0 and (any_mark or begun + unreadable > 0) then
  local ids = {}
  for i = 1, #kinds do
    ids[i] = backs[2 * i]
  end
  local marks = any_mark and redis.call('HMGET', crashes, unpack(ids)) or {}
  for i = 1, #ids do
    local mark = mark_of_returned(backs[2 * i - 1], kinds[i], marks[i])
    if mark then
      redis.call('HSET', crashes, ids[i], mark)
    elseif mark == false then
      redis.call('HDEL', crashes, ids[i])
    end
  end
end
call_with(removed, 'ZREM', due)
call_with(removed, 'HDEL', tasks)
call_with(changed, 'HDEL', changes)
call_with(changed, 'HDEL', crashes)

local dropped = 0
if #burials > 0 then
  local stamps, keys, entries, grown = {}, {}, {}, {}
  local known = {}
  -- A task and its requeued occurrence may have the same key. As with HSET, the last one counts.
  for i = #burials - 1, 1, -2 do
    local key, value = burials[i], burials[i + 1]
    if not known[key] then
      push(stamps, string.format('%.0f', now), key)
      keys[#keys + 1], known[key] = key, true
      local place, its_lane = order_of(value, now, key)
      if place then
        push(entries, 0, place)
        grown[its_lane] = (grown[its_lane] or 0) + #value
      end
    end
  end
  local former = redis.call('HMGET', dead_records, unpack(keys))
  for i = 1, #keys do
    local before = former[i] and redis.call('ZSCORE', dead, keys[i])
    if before then
      leave_order(dead_order, dead_bytes, former[i], before, keys[i])
    end
  end
  redis.call('HSET', dead_records, unpack(burials))
  redis.call('ZADD', dead, unpack(stamps))
  call_with(entries, 'ZADD', dead_order)
  for its_lane, size in pairs(grown) do
    local bytes = redis.call('HINCRBY', dead_bytes, its_lane, size)
    local from, upto = '[' .. its_lane .. ' ', '(' .. its_lane .. '!'
    local count = redis.call('ZLEXCOUNT', dead_order, from, upto)
    -- The last one stays, whatever its size.
    if count > cap or (bytes > cap_bytes and count > 1) then
      local oldest = redis.call('ZRANGEBYLEX', dead_order, from, upto, 'LIMIT', 0, 1000)
      local gone, over, freed = {}, {}, 0
      for i = 1, #oldest do
        local kept = count - #over
        if kept <= cap and (bytes - freed <= cap_bytes or kept <= 1) then
          break
        end
        local key, its_size = string.match(oldest[i], ' (%S+) (%d+)$')
        over[i], gone[i], freed = key, oldest[i], freed + its_size
      end
      redis.call('ZREM', dead_order, unpack(gone))
      redis.call('HINCRBY', dead_bytes, its_lane, -freed)
      dropped = dropped + redis.call('ZREM', dead, unpack(over))
      redis.call('HDEL', dead_records, unpack(over))
    end
  end
end

if behind == '' then
  redis.call('HDEL', claims, token)
  redis.call('ZREM', leases, token)
else
  -- A claim that has lost nothing keeps its number.
  if #number + 1 + #behind ~= #entry then
    redis.call('HSET', claims, token, 'part ' .. behind)
  end
  redis.call('ZADD', leases, 'XX', string.format('%.0f', now + lease), token)
end

if writes_due then
  local earliest, least, last = nil, math.huge, nil
  for _, list in ipairs(quiet and { nexts, asked_for } or { nexts, asked_for, backs, restored }) do
    for i = 1, #list, 2 do
      -- Many have the same due; compare the string once.
      if list[i] ~= last then
        last = list[i]
        local ms = tonumber(last)
        if ms < least then
          earliest, least = last, ms
        end
      end
    end
  end
  wake(ARGV[6], ARGV[7], earliest, head)
end
return { micros, 'settled', dropped, skipped, changed }
