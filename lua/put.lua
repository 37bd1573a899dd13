-- put: creates or replaces tasks of one shard, each in its lane with its due.
-- KEYS  1 tasks (hash)  2 changes (hash)  3 crashes (hash)  4 counts (hash)  5 lanes (set)  6 largest (string)
--       7.. due (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 mode, put or post  4 wake channel
--       5 lanes, their number  6.. lane, the name for each key from 7 on  7.. task: id, due, record
-- REPLY { now, "put", { "<code>[ <due that now holds>[ <due in flight>]]"... } } | { now, "late" }
-- KEEPS no message but the first goes out under a key that is in flight or was handed out, unless its user was told that key.

local tasks, changes, crashes, counts, lanes, largest = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local post, channel, declared = ARGV[3] == 'post', ARGV[4], tonumber(ARGV[5])
local first = 6 + declared
local n = (#ARGV - first + 1) / 3
if #KEYS ~= 6 + declared or n < 1 or n > 1000 or n % 1 ~= 0 then
  return redis.error_reply('BADCALL put: the numbers of keys and arguments do not fit')
end

local function lane_of(record)
  return string.sub(record, 32, 31 + (string.byte(record, 31) or 0))
end

-- Where what was asked for ends: behind it stands the trace of the request (flag 8), which puts do not compare.
local function end_of(record)
  return #record - (bit.band(string.byte(record, 2), 8) ~= 0 and 26 or 0)
end

-- Whether two records ask for the same. Compared in parts: of one of megabytes a part differs soon, or is soon forgotten.
local function ask_the_same(one, other)
  local upto = end_of(one)
  if upto ~= end_of(other) then
    return false
  end
  for from = 31, upto, 65536 do
    local to = math.min(from + 65535, upto)
    if string.sub(one, from, to) ~= string.sub(other, from, to) then
      return false
    end
  end
  return true
end

local due_of, ids = {}, {}
for i = 1, declared do
  due_of[ARGV[5 + i]] = KEYS[6 + i]
end
for i = 1, n do
  ids[i] = ARGV[first + 3 * i - 3]
  if not due_of[lane_of(ARGV[first + 3 * i - 1])] then
    return redis.error_reply('BADCALL put: a record whose lane is not declared')
  end
end

local time = redis.call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), string.format('%.0f', time[1] * 1000000 + time[2])
if ARGV[1] ~= '' then
  now, micros = tonumber(ARGV[1]), ARGV[1] .. '000'
end
if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

-- What will be written. Nothing is, before every task has its answer: scripts are not rolled back.
local records, adds, leaves, asked, cleared, unmarked, earliest, longest = {}, {}, {}, {}, {}, {}, {}, 0

local function push(list, one, two)
  list[#list + 1] = one
  list[#list + 1] = two
end

local function wait_at(lane, due, id)
  adds[lane] = adds[lane] or {}
  push(adds[lane], due, id)
  if not earliest[lane] or tonumber(due) < tonumber(earliest[lane]) then
    earliest[lane] = due
  end
end

local function write(id, record, former)
  if former then
    local revision = struct.pack('>I4', struct.unpack('>I4', former, 3) + 1)
    record = string.sub(record, 1, 2) .. revision .. string.sub(former, 7, 14) .. string.sub(record, 15)
  end
  push(records, id, record)
  push(cleared, id)
  longest = math.max(longest, #record)
end

-- Whether a requeued occurrence has the key that this one would get: such a one has a mark as long as it stands.
local any_mark = redis.call('HLEN', crashes) > 0
local function is_requeued(id, due)
  return any_mark and redis.call('HEXISTS', crashes, '!' .. id .. ':' .. due) == 1
end

-- One task: `former` is its record as it stands, `score` of it, `change` and `mark` what changes and crashes hold.
local function answer(id, due, record, former, score, change, mark)
  if former and not due_of[lane_of(former)] then
    return 'elsewhere ' .. lane_of(former)
  elseif not string.find(due, '^[1-9]%d*$') or #due > 15 or tonumber(due) > 253402300799999 then
    return 'bad_due'
  end
  local lane = lane_of(record)
  if not (former and score) then
    -- A record without a score should never be; it counts as no task.
    if is_requeued(id, due) then
      return 'in_flight ' .. due .. ' ' .. due
    end
    write(id, record)
    wait_at(lane, due, id)
    push(unmarked, id)
    return 'created'
  end
  local flying = string.sub(score, 1, 1) == '-'
  local held = flying and string.sub(score, 2) or score
  -- What could not be read was handed out only if its mark had a count before.
  local marked = not flying and mark and string.match(mark, '^%d+') == held
  local handed_out = marked and mark ~= held .. ':unreadable'
  local same = ask_the_same(former, record)
  if change ~= 'cancelled' then
    if post and not same then
      return 'key_reused ' .. (change or held)
    elseif same and (post or bit.band(string.byte(record, 2), 2) == 0) then
      return 'unchanged ' .. (change and change .. ' ' .. held or held)
    elseif same and (flying or handed_out) and not change and due == held then
      return 'unchanged'
    end
  end
  if flying then
    if due == held or lane_of(former) ~= lane then
      return 'in_flight ' .. due .. ' ' .. held
    elseif is_requeued(id, due) then
      return 'in_flight ' .. due .. ' ' .. due
    end
    push(asked, id, due)
    if change == 'cancelled' then
      write(id, record)
      return 'created ' .. due .. ' ' .. held
    end
    write(id, record, former)
    return 'replaced ' .. due .. ' ' .. held
  end
  if handed_out and due == held then
    return 'in_flight ' .. due .. ' ' .. held
  elseif is_requeued(id, due) then
    return 'in_flight ' .. due .. ' ' .. due
  end
  write(id, record, former)
  wait_at(lane, due, id)
  if lane_of(former) ~= lane then
    leaves[lane_of(former)] = leaves[lane_of(former)] or {}
    push(leaves[lane_of(former)], id)
  end
  if due == held and not marked then
    return 'replaced'
  end
  push(unmarked, id)
  return handed_out and 'replaced ' .. due .. ' ' .. held or 'replaced'
end

-- The records that stand there, which may be larger than those that were sent: up to 2 MiB of them, for to compare them with
-- what was sent costs as much again. As many at once as fit however large they are; where those would be few, or some were
-- large, Redis is asked for their lengths.
local former, reached, bytes, large = {}, 0, 0, false
-- The largest that may be among them; an older version did not tell.
local may_stand = redis.call('EXISTS', tasks) == 0 and 0 or tonumber(redis.call('GET', largest) or '') or math.huge
local function fits(from)
  local most, surely = math.min(64, n - from + 1), math.floor((2097152 - bytes) / may_stand)
  if surely >= 4 and not large then
    return math.min(most, surely)
  end
  local sum = bytes
  for i = 0, most - 1 do
    sum = sum + redis.call('HSTRLEN', tasks, ids[from + i])
    if sum > 2097152 then
      -- The first whatever its size.
      return bytes + i == 0 and 1 or i
    end
  end
  return most
end
while reached < n do
  local count = fits(reached + 1)
  if count == 0 then
    break
  end
  local found = redis.call('HMGET', tasks, unpack(ids, reached + 1, reached + count))
  for i = 1, count do
    local size = found[i] and #found[i] or 0
    former[reached + i], bytes, large = found[i], bytes + size, large or size > 16384
  end
  reached = reached + count
end

local any_change, answers = redis.call('HLEN', changes) > 0, {}
local change = any_change and reached > 0 and redis.call('HMGET', changes, unpack(ids, 1, reached)) or {}
local mark = any_mark and reached > 0 and redis.call('HMGET', crashes, unpack(ids, 1, reached)) or {}
local score, asking = {}, {}
for i = 1, reached do
  local lane = former[i] and lane_of(former[i])
  if lane and due_of[lane] then
    asking[lane] = asking[lane] or { ids = {}, places = {} }
    push(asking[lane].ids, ids[i])
    push(asking[lane].places, i)
  end
end
for lane, ask in pairs(asking) do
  for i, found in ipairs(redis.call('ZMSCORE', due_of[lane], unpack(ask.ids))) do
    score[ask.places[i]] = found
  end
end
for i = 1, reached do
  local at = first + 3 * i - 3
  answers[i] = answer(ids[i], ARGV[at + 1], ARGV[at + 2], former[i], score[i], change[i], mark[i])
end
for i = reached + 1, n do
  answers[i] = 'again'
end
if #records == 0 then
  return { micros, 'put', answers }
end

local head = {}
for lane in pairs(adds) do
  head[lane] = redis.call('ZRANGEBYSCORE', due_of[lane], '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
end
-- The first write needs room, on purpose: a full Redis takes no tasks in.
local gate = redis.pcall('HSET', tasks, unpack(records))
if type(gate) == 'table' then
  return redis.error_reply(string.match(gate.err, '%u%u%u+ .*') or gate.err)
end
if longest > may_stand then
  redis.call('SET', largest, string.format('%.0f', longest))
end
for lane, ids_left in pairs(leaves) do
  redis.call('ZREM', due_of[lane], unpack(ids_left))
end
for lane, pairs_added in pairs(adds) do
  redis.call('ZADD', due_of[lane], unpack(pairs_added))
  redis.call('SADD', lanes, lane)
end
if #asked > 0 then
  redis.call('HSET', changes, unpack(asked))
end
redis.call('HDEL', counts, unpack(cleared))
if any_mark and #unmarked > 0 then
  redis.call('HDEL', crashes, unpack(unmarked))
end
for lane, due in pairs(earliest) do
  -- A claimer may have gone past what is due already, and wait for what stands behind it.
  if not head[lane] or tonumber(due) < tonumber(head[lane]) or tonumber(head[lane]) <= now then
    redis.pcall('PUBLISH', channel, lane .. ' ' .. due)
  end
end
return { micros, 'put', answers }
