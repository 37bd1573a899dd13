-- glance: reads the state of a shard; tells one caller when to reap a lane.
-- WITH  prelude, lists, paused_lanes
-- KEYS  1 lanes (set)  2 dead (zset)  3 pauses:lanes (hash)  4.. due+leases+reap-at (zset, zset, string), of each lane
-- ARGV  1 now ms, "" = Redis' time  2 lease ms  3 dead_keep ms  4 depth, "" or 1  5.. lane: name, served "" or 1
-- REPLY { now, "glanced", dead, { lane known here... }, { head or "", first lease end or "", last lease end or "", stranded 0 or 1,
--       reap 0 or 1, waiting, in flight, first due in flight or "", overdue,
--       paused, pause of the lane or "" }, one per lane... }
-- KEEPS one caller a second is asked to reap a lane, and none before the holders had one lease of time to renew.

local lanes, dead, pauses = KEYS[1], KEYS[2], KEYS[3]
local lease, dead_keep, depth = tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] ~= ''
local n = (#KEYS - 3) / 3
if n % 1 ~= 0 or #ARGV ~= 4 + 2 * n then
  return redis.error_reply('BADCALL glance: the numbers of keys and arguments do not fit')
end

local full = first_write('SREM', lanes, '')
if full then
  return full
end

local any_pause = redis.call('HLEN', pauses) > 0
local outlived = redis.call('ZRANGEBYSCORE', dead, '-inf', string.format('%.0f', now - dead_keep), 'LIMIT', 0, 1)[1]
local reply = { micros, 'glanced', redis.call('ZCARD', dead), redis.call('SMEMBERS', lanes) }
for i = 1, n do
  local due, leases, reap_at = KEYS[3 * i + 1], KEYS[3 * i + 2], KEYS[3 * i + 3]
  local lane, served = ARGV[3 + 2 * i], ARGV[4 + 2 * i] ~= ''
  local head = head_of(due)
  local first, last, stranded = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2], nil, false
  if first then
    last = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
  else
    stranded = #redis.call('ZRANGEBYSCORE', due, '-inf', '(0', 'LIMIT', 0, 1) > 0
  end

  local pause = any_pause and pause_of_lane(pauses, lane)
  if any_pause and not pause then
    redis.call('HDEL', pauses, lane)
  end
  local known = served or redis.call('SISMEMBER', lanes, lane) == 1
  local at, postponed = string.match(redis.call('GET', reap_at) or '', '^(%d+)(.*)$')
  at = tonumber(at or '')
  local long = math.max(3000, lease / 2)
  local was_silent, next_at, must_reap = at and at < now - long and postponed == '', nil, 0
  if not at or was_silent then
    -- Redis or all instances were away, so holders first get time to renew their leases. This happens only once in a
    -- row; otherwise an instance that rarely makes a glance would never be asked to reap.
    next_at = now + lease
  elseif at > now + lease then
    next_at = now + 900
  elseif at <= now then
    next_at = now + 900
    -- The token contains the length of the lease; if not, ours is used.
    local length = first and tonumber(string.match(last[1], '^[^.]*%.%d+%.(%d+)$')) or lease
    local ended = first and (tonumber(first) <= now or tonumber(last[2]) > now + length)
    -- A paused lane stays known: another instance may serve it.
    local is_unused = not served and not first and not pause and redis.call('EXISTS', due) == 0
    must_reap = (ended or stranded or is_unused or outlived) and 1 or 0
  elseif postponed ~= '' and now <= at - lease + long then
    -- Glances come in time again, so the mark goes: if all instances are away once more, the reap may be postponed again.
    next_at = at
  end
  -- Write nothing for a lane that is neither served nor known, because no reap would delete the key.
  if next_at and known then
    -- The key expires when no instance looks any more. A missing key means the same as an old one.
    local value = string.format('%.0f', next_at) .. (was_silent and ' late' or '')
    redis.call('SET', reap_at, value, 'PX', string.format('%.0f', 2 * lease + 60000))
  end
  local waiting, flying, first_flying_due, overdue, paused = 0, 0, '', 0, 0
  if depth then
    waiting, overdue, flying, paused = counts_of(due)
    first_flying_due = string.sub(redis.call('ZREVRANGEBYSCORE', due, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or '', 2)
  end
  reply[4 + i] = {
    head or '', first or '', last and last[2] or '', stranded and 1 or 0, known and must_reap or 0, waiting, flying, first_flying_due,
    overdue, paused, pause or '',
  }
end
return reply
