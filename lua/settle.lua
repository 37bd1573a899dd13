-- settle: writes verdicts; the occurrences that they name leave their claim.
-- WITH  prelude, marks, dead, pauses
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 changes (hash)  6 crashes (hash)  7 counts (hash)
--       8 dead (zset)  9 dead:records (hash)  10 dead:order (zset)  11 dead:bytes (hash)  12 pauses (hash)
-- ARGV  1 now ms, "" = Redis' time  2 token  3 rest, keep or back  4 lease ms  5 dead_cap, number per lane  6 wake channel  7 lane
--       8 quiet, "" or 1: no wake-up for returned ones  9 ended, their number  10 ended_dead, how many of them (the last) are dead
--       11 nexts, their number  12 nexts_dead, how many of them (the last) are dead  13 backs, their number
--       14 begun, how many of them (the first) had begun  15 unreadable, how many of them (the last) are unreadable
--       16 named, all of them as "id due id due..."  17 dead_cap_bytes, per lane  18.. ended: id  19.. next: new due, id
--       20.. counted: id, counts  21.. back: due, id  22.. died: key, value
-- REPLY { now, "settled", dropped, { skipped id... }, { changed id... } } | { now, "lost" }
-- KEEPS an occurrence that has left a claim cannot be ended through this claim again.

local due, leases, claims, tasks, changes, crashes, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local token, rest, lease, quiet = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[8] ~= ''
local e, e_dead, n, n_dead = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11]), tonumber(ARGV[12])
local b, begun, unreadable, named = tonumber(ARGV[13]), tonumber(ARGV[14]), tonumber(ARGV[15]), ARGV[16]
local died = e_dead + n_dead
if #KEYS ~= 12 or #ARGV ~= 17 + e + 4 * n + 2 * b + 2 * died or e + n + b > 1000 or e_dead > e or n_dead > n
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

-- The verdicts, in the order of the arguments.
local taken = 17
local function take(count)
  taken = taken + count
  return { unpack(ARGV, taken - count + 1, taken) }
end
local ended, nexts, counted, backs, dead_entries = take(e), take(2 * n), take(2 * n), take(2 * b), take(2 * died)
local kinds = {}
for i = 1, b do
  kinds[i] = i <= begun and 'begun' or i > b - unreadable and 'unreadable' or 'back'
end

-- The short cuts, while `changes` is empty. If nothing has left the claim and all its occurrences are named, neither
-- its list nor the scores are read, because no other caller can change them while the token exists. The scores are not
-- read either if the named occurrences are the whole list of the claim, or its beginning. `behind` is the list of the
-- claim after this settle.
local number = string.match(entry, '^%S+')
-- Usually all three are empty, which one call tells.
local any = redis.call('EXISTS', changes, crashes, KEYS[12]) > 0
local unasked, behind = not any or redis.call('HLEN', changes) == 0, ''
local whole = unasked and tonumber(number) == e + n + b
if unasked and not whole then
  local upto = #number + 2 + #named
  local front = string.sub(entry, #number + 2, upto)
  whole = front == named
  behind = front == named .. ' ' and rest == 'keep' and string.sub(entry, upto + 1) or ''
end

-- Otherwise each verdict is compared with the claim. Occurrences that have left the claim are skipped. If the task was
-- put or cancelled in the meantime, that change is applied instead of the verdict.
local skipped, changed, asked_for, restored, removed = {}, {}, {}, {}, {}
if not whole and behind == '' then
  local held, order, due_of, asked = {}, {}, {}, {}
  for id, its_due in string.gmatch(string.sub(entry, #number + 2), '(%S+) (%S+)') do
    held[id] = its_due
    order[#order + 1] = id
  end
  for id, its_due in string.gmatch(named, '(%S+) (%S+)') do
    due_of[id] = its_due
  end
  for i, change in ipairs(not unasked and #order > 0 and redis.call('HMGET', changes, unpack(order)) or {}) do
    asked[order[i]] = change
  end
  local function apply(id)
    changed[#changed + 1] = id
    if asked[id] == 'cancelled' then
      removed[#removed + 1] = id
    else
      push(asked_for, asked[id], id)
    end
  end
  -- Which verdicts of a list have to be written. The id is the last of the `size` arguments of each.
  local function to_write(list, size)
    local written = {}
    for i = 1, #list / size do
      local id = list[size * i]
      if held[id] ~= due_of[id] then
        skipped[#skipped + 1] = id
      else
        held[id], written[i] = nil, not asked[id]
        if asked[id] then
          apply(id)
        end
      end
    end
    return written
  end
  local function pick(list, size, written)
    local picked = {}
    for i = 1, #list do
      if written[math.ceil(i / size)] then
        picked[#picked + 1] = list[i]
      end
    end
    return picked
  end
  local of_ended, of_nexts, of_backs, of_dead = to_write(ended, 1), to_write(nexts, 2), to_write(backs, 2), {}
  for i = 1, died do
    of_dead[i] = i <= e_dead and of_ended[e - e_dead + i] or i > e_dead and of_nexts[n - died + i]
  end
  ended, nexts, counted = pick(ended, 1, of_ended), pick(nexts, 2, of_nexts), pick(counted, 2, of_nexts)
  backs, kinds, dead_entries = pick(backs, 2, of_backs), pick(kinds, 1, of_backs), pick(dead_entries, 2, of_dead)
  -- The occurrences without a verdict.
  local left = {}
  for _, id in ipairs(order) do
    if held[id] and rest == 'keep' then
      push(left, id, held[id])
    elseif held[id] and asked[id] then
      apply(id)
    elseif held[id] then
      push(restored, held[id], id)
    end
  end
  behind = table.concat(left, ' ')
end

local any_mark, any_pause = any and redis.call('HLEN', crashes) > 0, any and redis.call('HLEN', KEYS[12]) > 0
local writes_due = #nexts + #backs + #asked_for + #restored > 0
local head = writes_due and head_of(due)
if #ended > 0 then
  redis.call('ZREM', due, unpack(ended))
  redis.call('HDEL', tasks, unpack(ended))
  if redis.call('HLEN', counts) > 0 then
    redis.call('HDEL', counts, unpack(ended))
  end
  call_with(any_mark and ended or {}, 'HDEL', crashes)
  call_with(any_pause and ended or {}, 'HDEL', KEYS[12])
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
local kept = any_pause and keep_paused(KEYS[12], due, { nexts, backs, asked_for, restored }) or {}
if #backs > 0 and (any_mark or begun + unreadable > 0) then
  write_marks(crashes, backs, kinds, any_mark)
end
call_with(removed, 'ZREM', due)
call_with(removed, 'HDEL', tasks)
call_with(any_pause and removed or {}, 'HDEL', KEYS[12])
call_with(changed, 'HDEL', changes)
call_with(changed, 'HDEL', crashes)
local dropped = 0
if #dead_entries > 0 then
  dropped = add_dead(KEYS[8], KEYS[9], KEYS[10], KEYS[11], dead_entries, tonumber(ARGV[5]), tonumber(ARGV[17]))
end

if behind == '' then
  redis.call('HDEL', claims, token)
  redis.call('ZREM', leases, token)
else
  -- The entry of a claim that still holds all its occurrences is not rewritten, so it keeps its number.
  if #number + 1 + #behind ~= #entry then
    redis.call('HSET', claims, token, 'part ' .. behind)
  end
  redis.call('ZADD', leases, 'XX', string.format('%.0f', now + lease), token)
end

if writes_due then
  local earliest = earliest_of(quiet and { nexts, asked_for } or { nexts, asked_for, backs, restored }, kept)
  wake(ARGV[6], ARGV[7], earliest, head)
end
return { micros, 'settled', dropped, skipped, changed }
