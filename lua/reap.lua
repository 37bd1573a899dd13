-- reap: ends expired claims; their occurrences return to the lane with the due they had.
-- WITH  prelude, marks, dead, pauses, paused_lanes
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 changes (hash)  6 crashes (hash)  7 counts (hash)
--       8 dead (zset)  9 dead:records (hash)  10 lanes (set)  11 reap-at (string)  12 largest (string)
--       13 dead:order (zset)  14 dead:bytes (hash)  15 pauses:lanes (hash)  16 pauses (hash)
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 lease ms  4 served, "" or 1  5 dead_keep ms  6 wake channel  7 lane
-- REPLY { now, "reaped", claims, occurrences, stranded, dropped, more 0 or 1, { instance... } } | { now, "late" }
-- KEEPS an occurrence returns with the due it had, or the one of a later put, so its key never changes.

local due, leases, claims, tasks, changes, crashes = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local counts, dead, dead_records, lanes, reap_at, largest = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local lease, served, dead_keep, lane = tonumber(ARGV[3]), ARGV[4] ~= '', tonumber(ARGV[5]), ARGV[7]
if #KEYS ~= 16 or #ARGV ~= 7 then
  return redis.error_reply('BADCALL reap: the numbers of keys and arguments do not fit')
end

-- A stopped Redis runs the script late. It would then end claims whose holders are alive, because their renewals come after it.
if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

local full = first_write('HDEL', claims, '')
if full then
  return full
end

local this_instant, before, cut, earliest = string.format('%.0f', now), head_of(due), 0, nil
-- After the clock stepped back, a lease ends too late and would hold its claim for as long as the step was. The token contains
-- the length of the lease; if not, ours is used.
local running = redis.call('ZREVRANGEBYSCORE', leases, '+inf', '(' .. this_instant, 'WITHSCORES', 'LIMIT', 0, 1000)
for i = 1, #running, 2 do
  local furthest = now + (tonumber(string.match(running[i], '^[^.]*%.%d+%.(%d+)$')) or lease)
  if tonumber(running[i + 1]) > furthest then
    redis.call('ZADD', leases, 'XX', string.format('%.0f', furthest), running[i])
    cut = cut + 1
  end
end

local ids, dues, known, ended, more = {}, {}, {}, 0, cut == 1000
local tokens = redis.call('ZRANGEBYSCORE', leases, '-inf', this_instant, 'LIMIT', 0, 1001)
for i = 1, #tokens do
  local entry = redis.call('HGET', claims, tokens[i]) or ''
  local held = {}
  for id, its_due in string.gmatch(entry, ' (%S+) (%S+)') do
    held[#held + 1] = { id, its_due }
  end
  -- Ends whole claims, at least one. A claim never holds more than one call may process.
  if i > 1000 or (#ids > 0 and #ids + #held > 1000) then
    more = true
    break
  end
  ended = i
  for k = 1, #held do
    ids[#ids + 1], dues[#dues + 1], known[held[k][1]] = held[k][1], held[k][2], true
  end
end

-- Safety net: if the lane has no lease, nothing may be marked as claimed, because no claim could settle it.
local occurrences = #ids
if redis.call('ZCARD', leases) == ended then
  local rows = redis.call('ZRANGEBYSCORE', due, '-inf', '(0', 'WITHSCORES', 'LIMIT', 0, 1001)
  for i = 1, #rows, 2 do
    if not known[rows[i]] and #ids < 1000 then
      ids[#ids + 1], dues[#dues + 1] = rows[i], string.sub(rows[i + 1], 2)
    elseif not known[rows[i]] then
      more = true
    end
  end
end

if #ids > 0 then
  local asked = redis.call('HLEN', changes) > 0 and redis.call('HMGET', changes, unpack(ids)) or {}
  local marks = redis.call('HLEN', crashes) > 0 and redis.call('HMGET', crashes, unpack(ids)) or {}
  local restored, removed, changed, marked = {}, {}, {}, {}
  for i = 1, #ids do
    if asked[i] then
      changed[#changed + 1] = ids[i]
    else
      push(marked, ids[i], mark_of_expired(dues[i], marks[i]))
    end
    if asked[i] == 'cancelled' then
      removed[#removed + 1] = ids[i]
    else
      local its_due = asked[i] or dues[i]
      push(restored, its_due, ids[i])
    end
  end
  call_with(restored, 'ZADD', due, 'XX')
  local kept = redis.call('HLEN', KEYS[16]) > 0 and keep_paused(KEYS[16], due, { restored }) or {}
  earliest = earliest_of({ restored }, kept)
  call_with(removed, 'ZREM', due)
  call_with(removed, 'HDEL', tasks)
  call_with(removed, 'HDEL', counts)
  call_with(removed, 'HDEL', KEYS[16])
  call_with(changed, 'HDEL', changes)
  call_with(changed, 'HDEL', crashes)
  call_with(marked, 'HSET', crashes)
end

-- The instances that held the ended claims, up to ten.
local holders, named = {}, {}
for i = 1, ended do
  local holder = string.match(tokens[i], '^[^.]*')
  if not named[holder] and #holders < 10 then
    holders[#holders + 1], named[holder] = holder, true
  end
end
if ended > 0 then
  redis.call('HDEL', claims, unpack(tokens, 1, ended))
  redis.call('ZREM', leases, unpack(tokens, 1, ended))
end
if redis.call('EXISTS', leases) == 0 then
  redis.call('DEL', claims)
  if not served and redis.call('EXISTS', due) == 0 and not pause_of_lane(KEYS[15], lane) then
    redis.call('SREM', lanes, lane)
    redis.call('DEL', reap_at)
    if redis.call('EXISTS', tasks) == 0 then
      redis.call('DEL', largest)
    end
  end
end

local dropped = 0
local last = string.format('%.0f', now - dead_keep)
local old, gone, read = redis.call('ZRANGEBYSCORE', dead, '-inf', last, 'WITHSCORES', 'LIMIT', 0, 101), {}, 0
for i = 1, #old, 2 do
  read = read + redis.call('HSTRLEN', dead_records, old[i])
  if #gone == 100 or (read > 1048576 and #gone > 0) then
    more = true
    break
  end
  local value = redis.call('HGET', dead_records, old[i])
  if value then
    leave_order(KEYS[13], KEYS[14], value, old[i + 1], old[i])
  end
  gone[#gone + 1] = old[i]
end
if #gone > 0 then
  dropped = redis.call('ZREM', dead, unpack(gone))
  redis.call('HDEL', dead_records, unpack(gone))
end

wake(ARGV[6], lane, earliest, before)
return { micros, 'reaped', ended, occurrences, #ids - occurrences, dropped, more and 1 or 0, holders }
