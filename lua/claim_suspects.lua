-- claim_suspects: locks the first due suspect of a lane, alone or with others of its kind; or what could not be read before.
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 crashes (hash)  6 counts (hash)
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 token  4 lease ms  5 max  6 max_bytes
--       7 unreadable, "" or 1: these instead of suspects  8 after ms, "" = from the first  9 after_member
-- REPLY { now, "claimed", head or "", last ms or "", last member or "", suspects, unreadable, removed, crashes,
--       "<number> id due id due...", { counts or nil of each recurring one... }, { record... } } | { now, "late" }
-- KEEPS an occurrence is in one claim at most; of suspects that are claimed together each was suspect twice and no more.

local due, leases, claims, tasks, crashes, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, lease, max, max_bytes = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local unreadable_only, after, after_member = ARGV[7] ~= '', ARGV[8], ARGV[9]
if #KEYS ~= 6 or #ARGV ~= 9 or token == '' or max < 1 or max > 1000 then
  return redis.error_reply('BADCALL claim_suspects: the numbers of keys and arguments do not fit')
end

local time = redis.call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), string.format('%.0f', time[1] * 1000000 + time[2])
if ARGV[1] ~= '' then
  now, micros = tonumber(ARGV[1]), ARGV[1] .. '000'
end
if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end

-- By bytes, as Redis orders them: Lua would compare by the server's locale.
local function is_after(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a > b
    end
  end
  return #one > #other
end

-- The rank of the first behind (ms, member), whether that one still stands there or not: among those of the same
-- millisecond, of which there may be many, it is searched by halves.
local function rank_after(ms, member)
  local low = redis.call('ZCOUNT', due, '-inf', '(' .. ms)
  local high = low + redis.call('ZCOUNT', due, ms, ms)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(redis.call('ZRANGE', due, middle, middle)[1], member) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end

local looks, watchful = 1001, redis.call('HLEN', crashes) > 0
local rank = rank_after(after ~= '' and after or '1', after_member)
local rows = redis.call('ZRANGE', due, rank, rank + looks, 'WITHSCORES')
local all = #rows / 2
while all > 0 and tonumber(rows[2 * all]) > now do
  all = all - 1
end
local total = math.min(all, looks)

local marks = {}
for from = 1, watchful and total or 0, 500 do
  local asked = {}
  for k = from, math.min(from + 499, total) do
    asked[#asked + 1] = rows[2 * k - 1]
  end
  local found = redis.call('HMGET', crashes, unpack(asked))
  for i = 1, #asked do
    marks[from + i - 1] = found[i]
  end
end

local ids, scores, records, gone = {}, {}, {}, {}
local taken, bytes, full, crashed, looked, suspects, unreadable, head = 0, 0, false, 0, 0, 0, 0, nil
for k = 1, total do
  local id, score = rows[2 * k - 1], rows[2 * k]
  local named, what = string.match(marks[k] or '', '^(%d+):(%w+)')
  local cannot_be_read = named == score and what == 'unreadable'
  local count = named == score and tonumber(what) or 0
  -- Of suspects the first; if its claims ended without word only twice, more of that kind with it.
  local meant = cannot_be_read and unreadable_only
    or count > 1 and not unreadable_only and (taken == 0 or count == 2 and crashed == 2)
  local may, size = meant and not full and taken < max, 0
  if may then
    size = redis.call('HSTRLEN', tasks, id)
    -- The first whatever its size; behind the first that does not fit none is taken.
    full = taken > 0 and bytes + size > max_bytes
    may = not full
  end
  if unreadable_only and meant and not may then
    -- The next call goes on here.
    break
  elseif may and size == 0 then
    gone[#gone + 1] = id
  elseif may then
    taken, bytes, crashed = taken + 1, bytes + size, count
    ids[taken], scores[taken], records[taken] = id, score, redis.call('HGET', tasks, id)
  elseif cannot_be_read then
    unreadable = unreadable + 1
  elseif count > 1 then
    suspects = suspects + 1
  else
    head = head or score
  end
  looked = k
end
head = head or rows[2 * (looked + 1)]

local entry, negated, counted = {}, {}, {}
for i = 1, taken do
  entry[2 * i - 1], entry[2 * i], negated[2 * i - 1], negated[2 * i] = ids[i], scores[i], '-' .. scores[i], ids[i]
  if string.byte(records[i], 2) % 2 == 1 then
    counted[#counted + 1] = ids[i]
  end
end
entry[0] = taken
local held = table.concat(entry, ' ', 0, 2 * taken)

if taken > 0 or #gone > 0 then
  -- The first write frees nothing but is allowed on a full Redis, and so are then those after it.
  local gate = redis.pcall('HDEL', claims, '')
  if type(gate) == 'table' then
    return redis.error_reply(string.match(gate.err, '%u%u%u+ .*') or gate.err)
  end
end
if taken > 0 then
  if redis.call('ZADD', leases, 'NX', string.format('%.0f', now + lease), token) == 0 then
    return redis.error_reply('BADCALL claim_suspects: the token is in use')
  end
  redis.call('HSET', claims, token, held)
  redis.call('ZADD', due, 'XX', unpack(negated))
end
if #gone > 0 then
  redis.call('ZREM', due, unpack(gone))
  redis.call('HDEL', crashes, unpack(gone))
end
local known = #counted > 0 and redis.call('HMGET', counts, unpack(counted)) or {}
return { micros, 'claimed', head or '', rows[2 * looked] or '', rows[2 * looked - 1] or '', suspects, unreadable, #gone,
  crashed, held, known, records }
