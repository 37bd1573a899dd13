-- claim_suspects: claims the first due suspect of a lane, alone or with others; or unreadable occurrences.
-- WITH  prelude, places, suspects, claim_writes, paused_lanes
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 crashes (hash)  6 counts (hash)
--       7 pauses:lanes (hash)
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 token  4 lease ms  5 max  6 max_bytes
--       7 unreadable, "" or 1: these instead of suspects  8 after ms, "" = from the first  9 after_member  10 lane
-- REPLY { now, "claimed", head or "", last ms or "", last member or "", suspects, unreadable, removed, crashes,
--       "<number> id due id due...", { counts or nil of each recurring one... }, { record... } } | { now, "late" }
--       | { now, "paused" }
-- KEEPS an occurrence is in at most one claim; suspects that are claimed together have exactly two crashes each.

local due, leases, claims, tasks, crashes, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, lease, max, max_bytes = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local unreadable_only, after, after_member = ARGV[7] ~= '', ARGV[8], ARGV[9]
if #KEYS ~= 7 or #ARGV ~= 10 or token == '' or max < 1 or max > 1000 then
  return redis.error_reply('BADCALL claim_suspects: the numbers of keys and arguments do not fit')
end

if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end
if pause_of_lane(KEYS[7], ARGV[10]) then
  return { micros, 'paused' }
end

local looks, has_marks = 1001, redis.call('HLEN', crashes) > 0
local rank = rank_after(due, after ~= '' and after or '1', after_member)
local rows = redis.call('ZRANGE', due, rank, rank + looks, 'WITHSCORES')
local all = #rows / 2
while all > 0 and tonumber(rows[2 * all]) > now do
  all = all - 1
end
local total = math.min(all, looks)

local marks = {}
for from = 1, has_marks and total or 0, 500 do
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
  local why, count = left_out(marks[k], score)
  -- Take the first suspect. If exactly two of its claims expired, also take other suspects with the same count.
  local meant = unreadable_only and why == 'unreadable'
    or not unreadable_only and why == 'suspect' and (taken == 0 or count == 2 and crashed == 2)
  local may, size = meant and not full and taken < max, 0
  if may then
    size = redis.call('HSTRLEN', tasks, id)
    -- The first one is taken whatever its size. Behind the first one that does not fit, none is taken.
    full = taken > 0 and bytes + size > max_bytes
    may = not full
  end
  if unreadable_only and meant and not may then
    -- The next call continues here.
    break
  elseif may and size == 0 then
    gone[#gone + 1] = id
  elseif may then
    taken, bytes, crashed = taken + 1, bytes + size, count
    ids[taken], scores[taken], records[taken] = id, score, redis.call('HGET', tasks, id)
  elseif why == 'unreadable' then
    unreadable = unreadable + 1
  elseif why == 'suspect' then
    suspects = suspects + 1
  else
    head = head or score
  end
  looked = k
end
head = head or unless_paused(rows[2 * (looked + 1)])

local entry, negated, counted = {}, {}, {}
for i = 1, taken do
  entry[2 * i - 1], entry[2 * i], negated[2 * i - 1], negated[2 * i] = ids[i], scores[i], '-' .. scores[i], ids[i]
  if string.byte(records[i], 2) % 2 == 1 then
    counted[#counted + 1] = ids[i]
  end
end
entry[0] = taken
local claim_entry = table.concat(entry, ' ', 0, 2 * taken)

local refused = write_claim(due, leases, claims, crashes, token, lease, claim_entry, negated, gone)
if refused then
  return refused
end
local known = #counted > 0 and redis.call('HMGET', counts, unpack(counted)) or {}
return { micros, 'claimed', head or '', rows[2 * looked] or '', rows[2 * looked - 1] or '', suspects, unreadable, #gone,
  crashed, claim_entry, known, records }
