-- settle: writes verdicts back and lets what they name leave its claim.
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 changes (hash)  6 crashes (hash)  7 counts (hash)
--       8 dead (zset)  9 dead:records (hash)
-- ARGV  1 now ms, "" = Redis' time  2 token  3 rest, keep or back  4 lease ms  5 dead_cap  6 wake channel  7 lane
--       8 quiet, "" or 1: what goes back wakes nobody  9 ended, their number  10 ended_dead, how many of them (the last) are dead
--       11 nexts, their number  12 nexts_dead, how many of them (the last) are dead  13 backs, their number
--       14 begun, how many of them (the first) had begun  15 unreadable, how many of them (the last) cannot be read
--       16 named, all of it as "id due id due..."  17.. ended: id  18.. next: new due, id  19.. counted: id, counts
--       20.. back: due, id  21.. burial: key, value
-- REPLY { now, "settled", dropped, { skipped id... }, { changed id... } } | { now, "lost" }
-- KEEPS what has left a claim cannot be ended through it again.

local due, leases, claims, tasks, changes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local crashes, counts, dead, dead_records = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local token, rest, lease, cap, quiet = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[8] ~= ''
local e, e_dead, n, n_dead = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local b, begun, unreadable = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15])
local buried, named = e_dead + n_dead, e + n + b
if #KEYS ~= 9 or #ARGV ~= 16 + e + 4 * n + 2 * b + 2 * buried or named > 1000 or e_dead > e or n_dead > n
  or begun + unreadable > b then
  return redis.error_reply('BADCALL settle: the numbers of keys and arguments do not fit')
end

local time = redis.call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), string.format('%.0f', time[1] * 1000000 + time[2])
if ARGV[1] ~= '' then
  now, micros = tonumber(ARGV[1]), ARGV[1] .. '000'
end

local entry = redis.call('HGET', claims, token)
if not entry then
  return { micros, 'lost' }
end
-- The first write frees nothing but is allowed on a full Redis, and so are then those after it.
local gate = redis.pcall('HDEL', claims, '')
if type(gate) == 'table' then
  return redis.error_reply(string.match(gate.err, '%u%u%u+ .*') or gate.err)
end

local args, at = ARGV, 16
local number = string.match(entry, '^%S+')
local skipped, changed, asked_for, restored, removed = {}, {}, {}, {}, {}
-- The short cuts. Nothing has left the claim and all that it holds is named: while its token lives nobody else can end
-- its pairs, so neither the list nor the scores need a look. Or what is named is all that is left, or what that begins with.
-- `behind` is what the claim still holds afterwards.
local unasked, behind = redis.call('HLEN', changes) == 0, ''
local whole = unasked and tonumber(number) == named
if unasked and not whole then
  local upto = #number + 2 + #ARGV[16]
  local front = string.sub(entry, #number + 2, upto)
  whole = front == ARGV[16]
  behind = front == ARGV[16] .. ' ' and rest == 'keep' and string.sub(entry, upto + 1) or ''
end
if not whole and behind == '' then
  local held, order = {}, {}
  for id, its_due in string.gmatch(string.sub(entry, #number + 2), '(%S+) (%S+)') do
    held[id] = its_due
    order[#order + 1] = id
  end
  local asked = {}
  if #order > 0 and not unasked then
    for i, change in ipairs(redis.call('HMGET', changes, unpack(order))) do
      asked[order[i]] = change
    end
  end

  local function apply(id)
    changed[#changed + 1] = id
    if asked[id] == 'cancelled' then
      removed[#removed + 1] = id
    else
      asked_for[#asked_for + 1], asked_for[#asked_for + 2] = asked[id], id
    end
  end

  -- Whether the verdict on this id is to be written.
  local function leaves(id, its_due)
    if held[id] ~= its_due then
      skipped[#skipped + 1] = id
      return false
    end
    held[id] = nil
    if asked[id] then
      apply(id)
      return false
    end
    return true
  end

  -- The same arguments again, with only what is to be written.
  local due_of, slim, grave = {}, { {}, {}, {}, {}, {} }, at + e + 4 * n + 2 * b
  local function push(part, one, two)
    local to = slim[part]
    to[#to + 1] = one
    to[#to + 1] = two
  end
  for id, its_due in string.gmatch(ARGV[16], '(%S+) (%S+)') do
    due_of[id] = its_due
  end
  for i = 1, e do
    local burial = i - (e - e_dead)
    if leaves(ARGV[at + i], due_of[ARGV[at + i]]) then
      push(1, ARGV[at + i])
      if burial > 0 then
        push(5, ARGV[grave + 2 * burial - 1], ARGV[grave + 2 * burial])
      end
    end
  end
  for i = 1, n do
    local pair, burial = at + e + 2 * i, e_dead + i - (n - n_dead)
    if leaves(ARGV[pair], due_of[ARGV[pair]]) then
      push(2, ARGV[pair - 1], ARGV[pair])
      push(3, ARGV[pair + 2 * n - 1], ARGV[pair + 2 * n])
      if i > n - n_dead then
        push(5, ARGV[grave + 2 * burial - 1], ARGV[grave + 2 * burial])
      end
    end
  end
  local begun_left, unreadable_left = 0, 0
  for i = 1, b do
    local pair = at + e + 4 * n + 2 * i
    if leaves(ARGV[pair], ARGV[pair - 1]) then
      push(4, ARGV[pair - 1], ARGV[pair])
      begun_left = begun_left + (i <= begun and 1 or 0)
      unreadable_left = unreadable_left + (i > b - unreadable and 1 or 0)
    end
  end
  args, at, begun, unreadable = {}, 0, begun_left, unreadable_left
  for part = 1, 5 do
    for i = 1, #slim[part] do
      args[#args + 1] = slim[part][i]
    end
  end
  e, n, b, buried = #slim[1], #slim[2] / 2, #slim[4] / 2, #slim[5] / 2

  -- What no verdict named.
  local left = {}
  for i = 1, #order do
    local id = order[i]
    if held[id] and rest == 'keep' then
      left[#left + 1] = id
      left[#left + 1] = held[id]
    elseif held[id] and asked[id] then
      apply(id)
    elseif held[id] then
      restored[#restored + 1], restored[#restored + 2] = held[id], id
    end
  end
  behind = table.concat(left, ' ')
end

local any_mark, turns = redis.call('HLEN', crashes) > 0, n + b > 0 or #asked_for > 0 or #restored > 0
local before = turns and redis.call('ZRANGEBYSCORE', due, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
local next_at, back_at = at + e, at + e + 4 * n
if e > 0 then
  redis.call('ZREM', due, unpack(args, at + 1, at + e))
  redis.call('HDEL', tasks, unpack(args, at + 1, at + e))
  if redis.call('HLEN', counts) > 0 then
    redis.call('HDEL', counts, unpack(args, at + 1, at + e))
  end
  if any_mark then
    redis.call('HDEL', crashes, unpack(args, at + 1, at + e))
  end
end
if n > 0 then
  redis.call('ZADD', due, 'XX', unpack(args, next_at + 1, next_at + 2 * n))
  redis.call('HSET', counts, unpack(args, next_at + 2 * n + 1, next_at + 4 * n))
  for i = 1, any_mark and n or 0 do
    redis.call('HDEL', crashes, args[next_at + 2 * i])
  end
end
if b > 0 then
  redis.call('ZADD', due, 'XX', unpack(args, back_at + 1, back_at + 2 * b))
end
if b > 0 and (any_mark or begun + unreadable > 0) then
  local ids = {}
  for i = 1, b do
    ids[i] = args[back_at + 2 * i]
  end
  local marks = any_mark and redis.call('HMGET', crashes, unpack(ids)) or {}
  for i = 1, b do
    local its_due = args[back_at + 2 * i - 1]
    local marked, _, count = string.match(marks[i] or '', '^(%d+):(%a*):?(%d*)$')
    if marked ~= its_due then
      marked, count = nil, ''
    end
    if i > b - unreadable then
      -- With a count it was handed out before.
      redis.call('HSET', crashes, ids[i], its_due .. ':unreadable' .. (count ~= '' and ':' .. count or ''))
    elseif i <= begun or count ~= '' then
      redis.call('HSET', crashes, ids[i], its_due .. ':' .. (count ~= '' and count or '0'))
    elseif marked then
      -- Its holder could read it.
      redis.call('HDEL', crashes, ids[i])
    end
  end
end
if #removed > 0 then
  redis.call('ZREM', due, unpack(removed))
  redis.call('HDEL', tasks, unpack(removed))
end
if #asked_for > 0 then
  redis.call('ZADD', due, 'XX', unpack(asked_for))
end
if #restored > 0 then
  redis.call('ZADD', due, 'XX', unpack(restored))
end
if #changed > 0 then
  redis.call('HDEL', changes, unpack(changed))
  redis.call('HDEL', crashes, unpack(changed))
end

local dropped = 0
if buried > 0 then
  local grave, stamp = back_at + 2 * b, {}
  for i = 1, buried do
    stamp[2 * i - 1], stamp[2 * i] = string.format('%.0f', now), args[grave + 2 * i - 1]
  end
  redis.call('HSET', dead_records, unpack(args, grave + 1, grave + 2 * buried))
  redis.call('ZADD', dead, unpack(stamp))
  local over = math.min(redis.call('ZCARD', dead) - cap, 1000)
  if over > 0 then
    local oldest = redis.call('ZRANGE', dead, 0, over - 1)
    dropped = redis.call('ZREM', dead, unpack(oldest))
    redis.call('HDEL', dead_records, unpack(oldest))
  end
end

if behind == '' then
  redis.call('HDEL', claims, token)
  redis.call('ZREM', leases, token)
else
  -- What has lost nothing keeps its number.
  if #number + 1 + #behind ~= #entry then
    redis.call('HSET', claims, token, 'part ' .. behind)
  end
  redis.call('ZADD', leases, 'XX', string.format('%.0f', now + lease), token)
end

if turns then
  local earliest, least, last = nil, math.huge, nil
  local function came(list, from, pairs_there)
    for i = from, from + 2 * (pairs_there - 1), 2 do
      local its_due = list[i]
      -- Many are due in the same millisecond: the string is looked at once.
      if its_due ~= last then
        last = its_due
        local ms = tonumber(its_due)
        if ms < least then
          earliest, least = its_due, ms
        end
      end
    end
  end
  came(args, next_at + 1, n)
  came(asked_for, 1, #asked_for / 2)
  if not quiet then
    came(args, back_at + 1, b)
    came(restored, 1, #restored / 2)
  end
  -- Also where the head is due already: a claimer may have gone past it, and wait for what stands behind it.
  if earliest and (not before or least < tonumber(before) or tonumber(before) <= now) then
    redis.pcall('PUBLISH', ARGV[6], ARGV[7] .. ' ' .. earliest)
  end
end
return { micros, 'settled', dropped, skipped, changed }
