-- glance: one look at a shard; tells one caller when a lane is to be reaped.
-- WITH  prelude
-- KEYS  1 lanes (set)  2 dead (zset)  3.. due (zset), leases (zset), reap-at (string), of each lane
-- ARGV  1 now ms, "" = Redis' time  2 lease ms  3 dead_keep ms  4 depth, "" or 1  5.. lane: name, served "" or 1
-- REPLY { now, "glanced", dead, { lane known here... }, { head or "", first lease end or "", last lease end or "", stranded 0 or 1,
--       reap 0 or 1, waiting, in flight, first due in flight or "" }, one per lane... }
-- KEEPS of all who look, one a second is told to reap, and nobody before holders had a lease's time to extend.

local lanes, dead, lease, dead_keep, depth = KEYS[1], KEYS[2], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4] ~= ''
local n = (#KEYS - 2) / 3
if n % 1 ~= 0 or #ARGV ~= 4 + 2 * n then
  return redis.error_reply('BADCALL glance: the numbers of keys and arguments do not fit')
end


local full = first_write('SREM', lanes, '')
if full then
  return full
end

local outlived = redis.call('ZRANGEBYSCORE', dead, '-inf', string.format('%.0f', now - dead_keep), 'LIMIT', 0, 1)[1]
local reply = { micros, 'glanced', redis.call('ZCARD', dead), redis.call('SMEMBERS', lanes) }
for i = 1, n do
  local due, leases, reap_at = KEYS[3 * i], KEYS[3 * i + 1], KEYS[3 * i + 2]
  local lane, served = ARGV[3 + 2 * i], ARGV[4 + 2 * i] ~= ''
  local head = head_of(due)
  local first, last, stranded = redis.call('ZRANGE', leases, 0, 0, 'WITHSCORES')[2], nil, false
  if first then
    last = redis.call('ZRANGE', leases, -1, -1, 'WITHSCORES')
  else
    stranded = #redis.call('ZRANGEBYSCORE', due, '-inf', '(0', 'LIMIT', 0, 1) > 0
  end

  local known = served or redis.call('SISMEMBER', lanes, lane) == 1
  local at, late = string.match(redis.call('GET', reap_at) or '', '^(%d+)(.*)$')
  at = tonumber(at or '')
  local long = math.max(3000, lease / 2)
  local away, next_at, told = at and at < now - long and late == '', nil, 0
  if not at or away then
    -- Redis or everybody was away: whoever holds a claim gets the time to extend it first. Not twice in a row: who looks
    -- seldom would never be told.
    next_at = now + lease
  elseif at > now + lease then
    next_at = now + 900
  elseif at <= now then
    next_at = now + 900
    -- A token ends in the length of its lease; one that does not say has ours.
    local length = first and tonumber(string.match(last[1], '^[^.]*%.%d+%.(%d+)$')) or lease
    local ended = first and (tonumber(first) <= now or tonumber(last[2]) > now + length)
    local forgotten = not served and not first and not head and not stranded
    told = (ended or stranded or forgotten or outlived) and 1 or 0
  elseif late ~= '' and now <= at - lease + long then
    -- Somebody looks often: where everybody is away once more, it may be put off once more.
    next_at = at
  end
  -- A lane that is neither served nor known is gone: nobody would remove its key.
  if next_at and known then
    -- Where nobody looks any more it goes by itself: what is missing is treated as what is too old.
    redis.call('SET', reap_at, string.format('%.0f', next_at) .. (away and ' late' or ''), 'PX', string.format('%.0f', 2 * lease + 60000))
  end
  local waiting, flying, held = 0, 0, ''
  if depth then
    waiting, flying = redis.call('ZCOUNT', due, '(0', '+inf'), redis.call('ZCOUNT', due, '-inf', '(0')
    held = string.sub(redis.call('ZREVRANGEBYSCORE', due, '(0', '-inf', 'WITHSCORES', 'LIMIT', 0, 1)[2] or '', 2)
  end
  reply[4 + i] = { head or '', first or '', last and last[2] or '', stranded and 1 or 0, known and told or 0, waiting, flying, held }
end
return reply
