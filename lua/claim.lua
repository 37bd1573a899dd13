-- claim: locks due occurrences of a lane under one lease and returns them.
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 crashes (hash)  6 counts (hash)
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 token  4 lease ms  5 max  6 max_bytes  7 suspects_only, "" or 1
--       8 wake channel  9 lane
-- REPLY { now, "claimed", head or "", suspects, removed, crashes, "<number> id due id due...", { counts or nil of each recurring
--       one... }, { record... }... } | { now, "late" }
-- KEEPS an occurrence is in one claim at most: only positive scores are taken, and all that is taken becomes negative.

local due, leases, claims, tasks, crashes, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, lease, max, max_bytes = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local suspects_only = ARGV[7] ~= ''
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
local upto_now, half, due_count, both = string.format('%.0f', now), math.ceil(max / 2), 0, false
local first = not suspects_only and redis.call('ZRANGEBYSCORE', due, '(0', upto_now, 'WITHSCORES', 'LIMIT', 0, 1)[2]
local at_once = first and redis.call('ZCOUNT', due, first, first) or 0
-- A lane whose head has waited for 5 s and of which more is due than fits is claimed from both ends, half from each: what is
-- freshly due has its share. In odd milliseconds the newest go first: where only one fits, the ends take turns. Else, and
-- where all of it has been due since one moment, there is one part.
if first and tonumber(first) + 5000 <= now then
  local all = redis.call('ZCOUNT', due, '(0', upto_now)
  if watchful or all > at_once then
    due_count, both = all, all > max
  end
end
-- Its first 2 * taken values become what is taken. Nobody is suspect while nothing has crashed.
local rows = {}
if at_once >= max and not both and not watchful then
  -- All that may fit has one score, which Redis need not write down for each.
  local ids = redis.call('ZRANGEBYSCORE', due, first, first, 'LIMIT', 0, max)
  for i = 1, max do
    rows[2 * i - 1], rows[2 * i] = ids[i], first
  end
elseif first or suspects_only and watchful then
  local window = suspects_only and 1001 or (both and half or max) + (watchful and 1000 or 0)
  rows = redis.call('ZRANGEBYSCORE', due, '(0', upto_now, 'WITHSCORES', 'LIMIT', 0, window)
end
local total, taken, negated, gone, suspects, crashed, head = #rows / 2, 0, {}, {}, 0, 0, nil
local chunks, counted, counts_asked = {}, {}, 0
-- Many are due in the same millisecond: one string for all of them.
local last_score, last_negated
local byte = string.byte

-- How often the claims of this very occurrence ended without word.
local function crash_count(mark, score)
  local named, count = string.match(mark or '', '^(%d+):(%d+)$')
  return named == score and tonumber(count) or 0
end

-- The first suspect; if its claims ended without word only twice, more of that kind with it.
local room = max_bytes
for from = 1, suspects_only and total or 0, 250 do
  local ids = {}
  for k = from, math.min(from + 249, total) do
    ids[#ids + 1] = rows[2 * k - 1]
  end
  local marks = redis.call('HMGET', crashes, unpack(ids))
  for i = 1, #ids do
    local id, score = ids[i], rows[2 * (from + i - 1)]
    local count = crash_count(marks[i], score)
    local may = taken == 0 or taken < max and count == 2 and crashed == 2
    local record = count > 1 and may and redis.call('HGET', tasks, id)
    if count < 2 then
      head = head or score
    elseif may and not record then
      gone[#gone + 1] = id
    elseif may and (taken == 0 or #record <= room) then
      taken, crashed, room, chunks[1] = taken + 1, count, room - #record, chunks[1] or {}
      local at = 2 * taken
      rows[at - 1], rows[at] = id, score
      negated[at - 1], negated[at], chunks[1][taken] = '-' .. score, id, record
      if byte(record, 2) % 2 == 1 then
        counts_asked = counts_asked + 1
        counted[counts_asked] = id
      end
    else
      suspects = suspects + 1
    end
  end
end

-- As few as `max`, but of more bytes than fit: from both ends, too.
if due_count > 0 and not both then
  local k, sum = 1, 0
  while k <= total and sum <= max_bytes do
    k, sum = k + 1, sum + redis.call('HSTRLEN', tasks, rows[2 * k - 1])
  end
  both = sum > max_bytes
end
local oldest, newest_first, bytes, skipped, looked = rows, both and now % 2 == 1, 0, 0, 0
if newest_first then
  rows = {}
end

for part = 1, suspects_only and 0 or both and 2 or 1 do
  local list, last, most, most_bytes, is_oldest, before = oldest, total, max, max_bytes, (part == 2) == newest_first, suspects
  if both then
    local window = (part == 1 and half or max - half) + (watchful and 1000 or 0)
    if not is_oldest then
      list = redis.call('ZREVRANGEBYSCORE', due, upto_now, '(0', 'WITHSCORES', 'LIMIT', 0, window)
    end
    last = math.min(#list / 2, window, due_count - looked)
    if part == 1 then
      most, most_bytes = half, math.floor(max_bytes / 2)
    end
  end
  local step, from, full = 4, 1, false
  while from <= last and not full do
    -- In chunks, small ones at first and while records are large: what is read in vain blocks Redis too. Suspects are not read.
    local upto, ids, place = math.min(from + step - 1, last), {}, nil
    for k = from, upto do
      ids[k - from + 1] = list[2 * k - 1]
    end
    local asked = ids
    if watchful then
      local marks = redis.call('HMGET', crashes, unpack(ids))
      asked, place = {}, {}
      for i = 1, #ids do
        if crash_count(marks[i], list[2 * (from + i - 1)]) < 2 then
          asked[#asked + 1], place[i] = ids[i], #asked + 1
        end
      end
    end
    local found, kept, largest = #asked > 0 and redis.call('HMGET', tasks, unpack(asked)) or {}, 0, 1
    -- All of them at once, if nobody is suspect, each has its record, and all fit: so it nearly always is, and what is done
    -- for one is done hundreds of thousands of times a second.
    local fits, sum = not place and taken + #ids <= most, bytes
    for i = 1, fits and #ids or 0 do
      local record = found[i]
      if not record then
        fits = false
        break
      end
      local size = #record
      sum = sum + size
      if size > largest then
        largest = size
      end
    end
    if fits and sum <= most_bytes then
      local ahead, to = 2 * (from - 1 - taken), 2 * taken
      for i = 1, #ids do
        to = to + 2
        local score = list[to + ahead]
        if score ~= last_score then
          last_score, last_negated = score, '-' .. score
        end
        negated[to - 1], negated[to] = last_negated, ids[i]
      end
      -- Where nothing was left out they stand in their places.
      for i = 1, (list ~= rows or ahead ~= 0) and #ids or 0 do
        to = 2 * (taken + i)
        rows[to - 1], rows[to] = ids[i], list[to + ahead]
      end
      taken, kept, bytes = taken + #ids, #ids, sum
    else
      for i = 1, #ids do
        local id, score, at = ids[i], list[2 * (from + i - 1)], i
        if place then
          at = place[i]
        end
        local record = at and found[at]
        if record and #record > largest then
          largest = #record
        end
        if not at then
          suspects = suspects + 1
        elseif not record then
          gone[#gone + 1] = id
        elseif taken == most or (taken > 0 and bytes + #record > most_bytes) then
          full, upto = true, from + i - 2
          break
        else
          taken, kept, bytes = taken + 1, kept + 1, bytes + #record
          if score ~= last_score then
            last_score, last_negated = score, '-' .. score
          end
          rows[2 * taken - 1], rows[2 * taken] = id, score
          negated[2 * taken - 1], negated[2 * taken] = last_negated, id
          found[kept] = record
        end
      end
    end
    for i = 1, recurring and kept or 0 do
      if byte(found[i], 2) % 2 == 1 then
        counts_asked = counts_asked + 1
        counted[counts_asked] = rows[2 * (taken - kept + i) - 1]
      end
    end
    if kept > 0 then
      -- A reply ends at its first nil.
      found[kept + 1] = nil
      chunks[#chunks + 1] = found
    end
    from = upto + 1
    step = math.max(1, math.min(4 * step, 64, math.floor(math.min(most_bytes - bytes, 1048576) / largest)))
  end
  looked = looked + from - 1
  -- Suspects at the newest end are told of once everything between has been looked at: `suspects_only` looks from the oldest.
  if looked == due_count then
    skipped = suspects
  elseif is_oldest then
    skipped = suspects - before
  end
end

if #gone > 0 then
  redis.call('ZREM', due, unpack(gone))
end
rows[0] = taken
local entry = table.concat(rows, ' ', 0, 2 * taken)
if taken > 0 then
  -- The first write frees nothing but is allowed on a full Redis, and so are then those after it.
  local gate = redis.pcall('HDEL', claims, '')
  if type(gate) == 'table' then
    return redis.error_reply(string.match(gate.err, '%u%u%u+ .*') or gate.err)
  elseif redis.call('ZADD', leases, 'NX', string.format('%.0f', now + lease), token) == 0 then
    return redis.error_reply('BADCALL claim: the token is in use')
  end
  redis.call('HSET', claims, token, entry)
  redis.call('ZADD', due, 'XX', unpack(negated))
end

-- What stands positive before the first that is free was looked at and left out: the suspects, and nothing else.
suspects = suspects_only and suspects or skipped
head = head or redis.call('ZRANGEBYSCORE', due, '(0', '+inf', 'WITHSCORES', 'LIMIT', suspects, 1)[2]
if taken > 0 and not suspects_only and head and tonumber(head) <= now then
  redis.pcall('PUBLISH', ARGV[8], ARGV[9] .. ' ' .. head)
end
local known = recurring and counts_asked > 0 and redis.call('HMGET', counts, unpack(counted)) or {}
return { micros, 'claimed', head or '', suspects, #gone, crashed, entry, known, unpack(chunks) }
