-- claim: locks due occurrences of a lane under one lease and returns them.
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 crashes (hash)  6 counts (hash)
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 token  4 lease ms  5 max  6 max_bytes  7 lone, "" or 1  8 wake channel  9 lane
-- REPLY { now, "claimed", head or "", suspects, removed, crashes, { id, due... }, { counts or nil of each recurring one... },
--       { record... }... } | { now, "late" }
-- KEEPS an occurrence is in one claim at most: only positive scores are taken, and all that is taken becomes negative.

local due, leases, claims, tasks, crashes, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, lease, max, max_bytes, lone = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7] ~= ''
if #KEYS ~= 6 or #ARGV ~= 9 or token == '' or max < 1 or max > 1000 then
  return redis.error_reply('BADCALL claim: the numbers of keys and arguments do not fit')
end

local time = redis.call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), string.format('%.0f', time[1] * 1000000 + time[2])
if ARGV[1] ~= '' then
  now, micros = tonumber(ARGV[1]), ARGV[1] .. '000'
end
if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

local watchful, recurring = redis.call('HLEN', crashes) > 0, redis.call('HLEN', counts) > 0
local window = lone and 1001 or watchful and max + 1000 or max
-- Its first 2 * taken values become what is taken. Nobody is suspect while nothing has crashed.
local rows = {}
if watchful or not lone then
  rows = redis.call('ZRANGEBYSCORE', due, '(0', string.format('%.0f', now), 'WITHSCORES', 'LIMIT', 0, window)
end
local taken, negated, gone, suspects, crashed, head = 0, {}, {}, 0, 0, nil
local chunks, counted = {}, {}

-- How often the claims of this very occurrence ended without word.
local function crash_count(mark, score)
  local named, count = string.match(mark or '', '^(%d+):(%d+)$')
  return named == score and tonumber(count) or 0
end

local function take(id, score, record)
  taken = taken + 1
  rows[2 * taken - 1], rows[2 * taken] = id, score
  negated[2 * taken - 1], negated[2 * taken] = '-' .. score, id
  if recurring and string.byte(record, 2) % 2 == 1 then
    counted[#counted + 1] = id
  end
end

local total, step, from, bytes, full = #rows / 2, 16, 1, 0, false
while from <= total and not full do
  -- In chunks, the first ones small: records may be large, and what is read in vain blocks Redis too.
  local upto, ids, scores = math.min(from + step - 1, total), {}, {}
  for i = from, upto do
    ids[i - from + 1], scores[i - from + 1] = rows[2 * i - 1], rows[2 * i]
  end
  from, step = upto + 1, math.min(2 * step, 64)
  local marks = watchful and redis.call('HMGET', crashes, unpack(ids)) or {}
  local found = lone and {} or redis.call('HMGET', tasks, unpack(ids))
  local kept = 0
  for i = 1, #ids do
    local crashes_here = watchful and crash_count(marks[i], scores[i]) or 0
    if lone and crashes_here >= 2 and taken == 0 then
      found = { redis.call('HGET', tasks, ids[i]) }
      if found[1] then
        crashed = crashes_here
        take(ids[i], scores[i], found[1])
        chunks[1] = found
      else
        gone[#gone + 1] = ids[i]
      end
    elseif crashes_here >= 2 then
      suspects = suspects + 1
    elseif lone then
      head = head or scores[i]
    elseif not found[i] then
      gone[#gone + 1] = ids[i]
    elseif taken == max or (taken > 0 and bytes + #found[i] > max_bytes) then
      full = true
      break
    else
      take(ids[i], scores[i], found[i])
      bytes, kept = bytes + #found[i], kept + 1
      found[kept] = found[i]
    end
  end
  if kept > 0 then
    -- A reply ends at its first nil.
    found[kept + 1] = nil
    chunks[#chunks + 1] = found
  end
end

if #gone > 0 then
  redis.call('ZREM', due, unpack(gone))
end
if taken > 0 then
  -- The first write frees nothing but is allowed on a full Redis, and so are then those after it.
  local gate = redis.pcall('HDEL', claims, '')
  if type(gate) == 'table' then
    return redis.error_reply(string.match(gate.err, '%u%u%u+ .*') or gate.err)
  elseif redis.call('ZADD', leases, 'NX', string.format('%.0f', now + lease), token) == 0 then
    return redis.error_reply('BADCALL claim: the token is in use')
  end
  redis.call('HSET', claims, token, taken .. ' ' .. table.concat(rows, ' ', 1, 2 * taken))
  redis.call('ZADD', due, 'XX', unpack(negated))
end
rows[2 * taken + 1] = nil

-- What stands positive before the first that is free was looked at and left out: the suspects, and nothing else.
head = head or redis.call('ZRANGEBYSCORE', due, '(0', '+inf', 'WITHSCORES', 'LIMIT', suspects, 1)[2]
if taken > 0 and not lone and head and tonumber(head) <= now then
  redis.pcall('PUBLISH', ARGV[8], ARGV[9] .. ' ' .. head)
end
local known = #counted > 0 and redis.call('HMGET', counts, unpack(counted)) or {}
return { micros, 'claimed', head or '', suspects, #gone, crashed, rows, known, unpack(chunks) }
