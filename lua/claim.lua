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
-- Its first 2 * taken values become what is taken. Nobody is suspect while nothing has crashed.
local rows = {}
if watchful or not lone then
  local window = lone and 1001 or watchful and max + 1000 or max
  rows = redis.call('ZRANGEBYSCORE', due, '(0', string.format('%.0f', now), 'WITHSCORES', 'LIMIT', 0, window)
end
local total, taken, negated, gone, suspects, crashed, head = #rows / 2, 0, {}, {}, 0, 0, nil
local chunks, counted = {}, {}

-- How often the claims of this very occurrence ended without word.
local function crash_count(mark, score)
  local named, count = string.match(mark or '', '^(%d+):(%d+)$')
  return named == score and tonumber(count) or 0
end

for k = 1, lone and total or 0 do
  local id, score = rows[2 * k - 1], rows[2 * k]
  local count = crash_count(redis.call('HGET', crashes, id), score)
  if count < 2 then
    head = head or score
  elseif taken == 1 then
    suspects = suspects + 1
  else
    local record = redis.call('HGET', tasks, id)
    if record then
      taken, crashed, chunks[1], negated = 1, count, { record }, { '-' .. score, id }
      rows[1], rows[2] = id, score
      counted[1] = string.byte(record, 2) % 2 == 1 and id or nil
    else
      gone[#gone + 1] = id
    end
  end
end

local step, from, bytes, full = 4, 1, 0, lone
while from <= total and not full do
  -- In chunks, small ones at first and while records are large: what is read in vain blocks Redis too. Suspects are not read.
  local upto, ids, asked, place = math.min(from + step - 1, total), {}, {}, {}
  for k = from, upto do
    ids[k - from + 1] = rows[2 * k - 1]
  end
  local marks = watchful and redis.call('HMGET', crashes, unpack(ids)) or {}
  for i = 1, #ids do
    if crash_count(marks[i], rows[2 * (from + i - 1)]) < 2 then
      asked[#asked + 1], place[i] = ids[i], #asked + 1
    end
  end
  local found, kept, largest = #asked > 0 and redis.call('HMGET', tasks, unpack(asked)) or {}, 0, 1
  for i = 1, #ids do
    local id, score, record = ids[i], rows[2 * (from + i - 1)], place[i] and found[place[i]]
    largest = math.max(largest, record and #record or 0)
    if not place[i] then
      suspects = suspects + 1
    elseif not record then
      gone[#gone + 1] = id
    elseif taken == max or (taken > 0 and bytes + #record > max_bytes) then
      full = true
      break
    else
      taken, kept, bytes = taken + 1, kept + 1, bytes + #record
      local at = 2 * taken
      rows[at - 1], rows[at] = id, score
      negated[at - 1], negated[at] = '-' .. score, id
      found[kept] = record
      if recurring and string.byte(record, 2) % 2 == 1 then
        counted[#counted + 1] = id
      end
    end
  end
  if kept > 0 then
    -- A reply ends at its first nil.
    found[kept + 1] = nil
    chunks[#chunks + 1] = found
  end
  from = upto + 1
  step = math.max(1, math.min(4 * step, 32, math.floor(math.min(max_bytes - bytes, 1048576) / largest)))
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
local known = recurring and #counted > 0 and redis.call('HMGET', counts, unpack(counted)) or {}
return { micros, 'claimed', head or '', suspects, #gone, crashed, rows, known, unpack(chunks) }
