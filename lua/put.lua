-- put: creates or replaces tasks of one shard.
-- WITH  prelude, lanes, records, revisions, marks, pauses
-- KEYS  1 tasks (hash)  2 changes (hash)  3 crashes (hash)  4 counts (hash)  5 lanes (set)  6 largest (string)
--       7 pauses (hash)  8.. due (zset), one per lane
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 mode: put, post, match and the revision (bytes 3 to 14 of the record) that
--       the task must have, or match alone: there must be none  4 wake channel
--       5 lanes, their number  6.. lane, the name for each key from 8 on  7.. task: id, due, record
-- REPLY { now, "put", { "<code>[ <due that now holds>[ <due in flight>]][ paused]"... } } | { now, "late" }
-- KEEPS no second message goes out under a key that is in flight or was handed out, unless the user knows that key.

local tasks, changes, crashes, counts, lanes, largest = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local post, channel, declared = ARGV[3] == 'post', ARGV[4], tonumber(ARGV[5])
local revision = string.sub(ARGV[3], 1, 5) == 'match' and string.sub(ARGV[3], 6)
local first = 6 + declared
local n = (#ARGV - first + 1) / 3
if #KEYS ~= 7 + declared or n < 1 or n > 1000 or n % 1 ~= 0 then
  return redis.error_reply('BADCALL put: the numbers of keys and arguments do not fit')
end
local due_key_of, ids = due_by_lane(8, 6), {}
for i = 1, n do
  ids[i] = ARGV[first + 3 * i - 3]
  if not due_key_of[lane_of(ARGV[first + 3 * i - 1])] then
    return redis.error_reply('BADCALL put: a record whose lane is not declared')
  end
end
if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

-- Collects the writes. All tasks get their answers before the first write, because Redis does not roll scripts back.
local records, adds, leaves, new_changes, cleared, unmarked, earliest, longest = {}, {}, {}, {}, {}, {}, {}, 0
local resumed = {}

local function wait_at(lane, due, id, pause)
  adds[lane] = adds[lane] or {}
  push(adds[lane], pause and paused_score(due) or due, id)
  if pause then
    return
  elseif not earliest[lane] or tonumber(due) < tonumber(earliest[lane]) then
    earliest[lane] = due
  end
end

local function write(id, record, former)
  push(records, id, former and next_revision(record, former) or record)
  push(cleared, id)
  longest = math.max(longest, #record)
end

-- Whether a requeued occurrence has this key. It has a mark as long as it exists.
local any_mark = redis.call('HLEN', crashes) > 0
local function is_requeued(id, due)
  return any_mark and redis.call('HEXISTS', crashes, '!' .. id .. ':' .. due) == 1
end

-- The answer if nothing has to be written for an existing task.
local function answer_as_is(due, record, former, current_due, change)
  local same = ask_the_same(former, record)
  if post and not same then
    return 'key_reused ' .. (change or current_due)
  elseif same and (post or bit.band(string.byte(record, 2), 2) == 0) then
    return 'unchanged ' .. (change and change .. ' ' .. current_due or current_due)
  elseif same and not change and due == current_due then
    return 'unchanged'
  end
end

-- The answer for one task. `former` is its stored record, `score` its score, `change`, `mark` and `pause` its entries in
-- changes, crashes and pauses.
local function answer(id, due, record, former, score, change, mark, pause)
  if former and not due_key_of[lane_of(former)] then
    return 'elsewhere ' .. lane_of(former)
  elseif not string.find(due, '^[1-9]%d*$') or #due > 15 or tonumber(due) > 253402300799999 then
    return 'bad_due'
  end
  -- A record without a score should not exist; it counts as no task.
  former = score and former
  local exists = former and change ~= 'cancelled'
  if revision and revision ~= (exists and string.sub(former, 3, 14) or '') then
    return 'mismatch'
  end
  local flying = former and string.sub(score, 1, 1) == '-'
  local current_due = former and (flying and string.sub(score, 2) or due_of_score(score))
  local marked = former and not flying and mark and string.match(mark, '^%d+') == current_due
  local handed_out = marked and was_handed_out(mark, current_due)
  local lane, former_lane = lane_of(record), former and lane_of(former)
  local as_is = exists and answer_as_is(due, record, former, current_due, change)
  if as_is then
    return as_is
  elseif (flying or handed_out) and due == current_due or flying and former_lane ~= lane then
    return 'in_flight ' .. due .. ' ' .. current_due
  elseif is_requeued(id, due) then
    return 'in_flight ' .. due .. ' ' .. due
  elseif flying then
    push(new_changes, id, due)
    write(id, record, change ~= 'cancelled' and former)
    return (change == 'cancelled' and 'created ' or 'replaced ') .. due .. ' ' .. current_due
  end
  write(id, record, former)
  wait_at(lane, due, id, former and pause)
  if pause and not former then
    resumed[#resumed + 1] = id
  end
  if former and former_lane ~= lane then
    leaves[former_lane] = leaves[former_lane] or {}
    push(leaves[former_lane], id)
  end
  if due ~= current_due or marked then
    push(unmarked, id)
  end
  return not former and 'created' or handed_out and 'replaced ' .. due .. ' ' .. current_due or 'replaced'
end

-- The stored records may be larger than the new ones. Reads at most 2 MiB of them, because comparing costs as much as reading.
local former, reached, bytes, large = {}, 0, 0, false
local max_stored_size = largest_of(tasks, largest)
while reached < n do
  local count = fits(tasks, ids, reached + 1, n, bytes, 2097152, large and math.huge or max_stored_size)
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

-- The entries of these tasks in changes, crashes and their lanes.
local change = reached > 0 and redis.call('HLEN', changes) > 0 and redis.call('HMGET', changes, unpack(ids, 1, reached)) or {}
local mark = reached > 0 and any_mark and redis.call('HMGET', crashes, unpack(ids, 1, reached)) or {}
local any_pause = reached > 0 and redis.call('HLEN', KEYS[7]) > 0
local pause = any_pause and redis.call('HMGET', KEYS[7], unpack(ids, 1, reached)) or {}
local score, asking, answers = {}, {}, {}
for i = 1, reached do
  local lane = former[i] and lane_of(former[i])
  if lane and due_key_of[lane] then
    asking[lane] = asking[lane] or { ids = {}, places = {} }
    push(asking[lane].ids, ids[i])
    push(asking[lane].places, i)
  end
end
for lane, ask in pairs(asking) do
  for i, found in ipairs(redis.call('ZMSCORE', due_key_of[lane], unpack(ask.ids))) do
    score[ask.places[i]] = found
  end
end
for i = 1, n do
  local at = first + 3 * i - 3
  answers[i] = i > reached and 'again'
    or answer(ids[i], ARGV[at + 1], ARGV[at + 2], former[i], score[i], change[i], mark[i], pause[i])
  if pause[i] and string.find(answers[i], '^[ru]') then
    -- It is replaced or unchanged.
    answers[i] = answers[i] .. ' paused'
  end
end
if #records == 0 then
  return { micros, 'put', answers }
end

local head = {}
for lane in pairs(adds) do
  head[lane] = head_of(due_key_of[lane])
end
-- This first write needs memory on purpose: a full Redis refuses new tasks.
local full = first_write('HSET', tasks, unpack(records))
if full then
  return full
end
if longest > max_stored_size then
  redis.call('SET', largest, string.format('%.0f', longest))
end
for lane, ids_left in pairs(leaves) do
  redis.call('ZREM', due_key_of[lane], unpack(ids_left))
end
for lane, pairs_added in pairs(adds) do
  redis.call('ZADD', due_key_of[lane], unpack(pairs_added))
  redis.call('SADD', lanes, lane)
end
call_with(new_changes, 'HSET', changes)
redis.call('HDEL', counts, unpack(cleared))
call_with(resumed, 'HDEL', KEYS[7])
if any_mark and #unmarked > 0 then
  redis.call('HDEL', crashes, unpack(unmarked))
end
for lane, due in pairs(earliest) do
  wake(channel, lane, due, head[lane])
end
return { micros, 'put', answers }
