-- claim: claims due occurrences of a lane under one lease and returns them.
-- WITH  prelude, places, records, suspects, claim_writes, paused_lanes
-- KEYS  1 due (zset)  2 leases (zset)  3 claims (hash)  4 tasks (hash)  5 crashes (hash)  6 counts (hash)
--       7 largest (string)  8 pauses:lanes (hash)
-- ARGV  1 now ms, "" = Redis' time  2 not_after ms  3 token  4 lease ms  5 max  6 max_bytes  7 newest_first, "" or 1
--       8 after ms, "" = from the first  9 after_member  10 wake channel  11 lane
-- REPLY { now, "claimed", head or "", last ms or "", last member or "", suspects, unreadable, removed, 0 (see claim_suspects),
--       "<number> id due id due...", { counts or nil of each recurring one... }, { record... } } | { now, "late" }
--       | { now, "paused" }
-- KEEPS an occurrence is in at most one claim: only positive scores are taken, and each becomes negative.

local due, leases, claims, tasks, crashes, counts = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local token, lease, max, max_bytes = ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local newest_first, after, after_member = ARGV[7] ~= '', ARGV[8], ARGV[9]
if #KEYS ~= 8 or #ARGV ~= 11 or token == '' or max < 1 or max > 1000 or (newest_first and after ~= '') then
  return redis.error_reply('BADCALL claim: the numbers of keys and arguments do not fit')
end

if now > tonumber(ARGV[2]) then
  return { micros, 'late' }
end
-- Usually both are empty, which one call tells.
local any = redis.call('EXISTS', crashes, KEYS[8]) > 0
if any and pause_of_lane(KEYS[8], ARGV[11]) then
  return { micros, 'paused' }
end

local upto_now, rank = string.format('%.0f', now), after ~= '' and rank_after(due, after, after_member)
local function due_rows(skip, count)
  if newest_first then
    return redis.call('ZREVRANGEBYSCORE', due, upto_now, '(0', 'WITHSCORES', 'LIMIT', skip, count)
  elseif rank then
    return redis.call('ZRANGE', due, rank + skip, rank + skip + count - 1, 'WITHSCORES')
  end
  return redis.call('ZRANGEBYSCORE', due, '(0', upto_now, 'WITHSCORES', 'LIMIT', skip, count)
end

-- Returns more than `max` rows if they all have the same due, as after an outage or at midnight. Redis then does
-- not format the score of each row.
local function rows_of_one_moment()
  local first = redis.call('ZRANGEBYSCORE', due, '(0', upto_now, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  local members = first and redis.call('ZRANGEBYSCORE', due, first, first, 'LIMIT', 0, max + 1) or {}
  local found = {}
  for i = 1, #members > max and #members or 0 do
    found[2 * i - 1], found[2 * i] = members[i], first
  end
  return found[1] and found
end

-- The rows to take, and one more for the head. Without marks no row is left out; otherwise up to 1000 more are read.
local watchful = any and redis.call('HLEN', crashes) > 0
local window = max + (watchful and 1000 or 0)
local rows = not newest_first and not rank and rows_of_one_moment() or due_rows(0, max + 1)
local total
local function count_rows()
  total = #rows / 2
  -- A range by rank also contains rows that are not due yet.
  while rank and total > 0 and tonumber(rows[2 * total]) > now do
    total = total - 1
  end
  total = math.min(total, window)
end
count_rows()

-- The candidates: ids and the numbers of their rows. The first `taken` of them are taken and have their records.
local ids, row_of, records, gone, aside = {}, {}, {}, {}, {}
local taken, bytes, looked, full, large = 0, 0, 0, false, false

local largest = tonumber(redis.call('GET', KEYS[7]) or '') or math.huge

-- Takes as many of ids[taken + 1] .. ids[candidates] as fit, and moves those without a record to `gone`.
local function take(candidates)
  while taken < candidates and not full do
    local count = fits(tasks, ids, taken + 1, candidates, bytes, max_bytes, large and math.huge or largest)
    local found = count > 0 and redis.call('HMGET', tasks, unpack(ids, taken + 1, taken + count)) or {}
    full = count == 0
    local n, sum = taken, bytes
    for i = 1, count do
      local record = found[i]
      local size = record and #record
      if not record then
        gone[#gone + 1] = table.remove(ids, n + 1)
        table.remove(row_of, n + 1)
        candidates = candidates - 1
      elseif n > 0 and sum + size > max_bytes then
        full = true
        break
      else
        n, sum = n + 1, sum + size
        records[n] = record
        if size > 16384 then
          large = true
        end
      end
    end
    taken, bytes = n, sum
  end
end

while looked < total and taken < max and not full do
  local upto, candidates, marks = math.min(looked + max - taken, total), taken, {}
  if watchful then
    local asked = {}
    for k = looked + 1, upto do
      asked[k - looked] = rows[2 * k - 1]
    end
    marks = redis.call('HMGET', crashes, unpack(asked))
  end
  for k = looked + 1, upto do
    local why = watchful and left_out(marks[k - looked], rows[2 * k])
    if why then
      aside[k] = why
    else
      candidates = candidates + 1
      ids[candidates], row_of[candidates] = rows[2 * k - 1], k
    end
  end
  take(candidates)
  looked = full and row_of[taken + 1] - 1 or upto
  if looked == total and watchful and #rows == 2 * (max + 1) then
    local more = due_rows(max + 1, 1000)
    for i = 1, #more do
      rows[#rows + 1] = more[i]
    end
    count_rows()
  end
end

local suspects, unreadable, last, last_member, head = 0, 0, '', '', nil
if not newest_first then
  for k, why in pairs(aside) do
    suspects = suspects + (k <= looked and why == 'suspect' and 1 or 0)
    unreadable = unreadable + (k <= looked and why == 'unreadable' and 1 or 0)
  end
  last, last_member = rows[2 * looked] or '', rows[2 * looked - 1] or ''
  head = unless_paused(rows[2 * (looked + 1)])
  if not head and not rank then
    head = redis.call('ZRANGEBYSCORE', due, '(' .. upto_now, last_due, 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
end

-- Sort by due.
for i = 1, newest_first and math.floor(taken / 2) or 0 do
  local j = taken + 1 - i
  ids[i], ids[j], row_of[i], row_of[j], records[i], records[j] = ids[j], ids[i], row_of[j], row_of[i], records[j], records[i]
end
local negated, counted, score, negative = {}, {}, nil, nil
local recurring, counts_asked, byte = redis.call('HLEN', counts) > 0, 0, string.byte
for i = 1, taken do
  local id, its_score = ids[i], rows[2 * row_of[i]]
  -- Many have the same due; build one string for all of them.
  if its_score ~= score then
    score, negative = its_score, '-' .. its_score
  end
  negated[2 * i - 1], negated[2 * i] = negative, id
  if recurring and byte(records[i], 2) % 2 == 1 then
    counts_asked = counts_asked + 1
    counted[counts_asked] = id
  end
end
-- The rows are the entry of the claim, unless some were left out or the order was reversed.
if newest_first or row_of[taken] ~= taken then
  local id_and_due = {}
  for i = 1, taken do
    id_and_due[2 * i - 1], id_and_due[2 * i] = ids[i], rows[2 * row_of[i]]
  end
  rows = id_and_due
end
local claim_entry = taken .. ' ' .. table.concat(rows, ' ', 1, 2 * taken)

local refused = write_claim(due, leases, claims, crashes, token, lease, claim_entry, negated, gone)
if refused then
  return refused
end
if newest_first then
  head = head_of(due)
end
-- Wake the next claimer for the remaining due tasks, but not after a claim with `after` or `newest_first`. Such a claim
-- skipped the earlier occurrences for a reason, so another claimer would find nothing to publish.
if taken > 0 and not newest_first and not rank and head and tonumber(head) <= now then
  redis.pcall('PUBLISH', ARGV[10], ARGV[11] .. ' ' .. head)
end
local known = counts_asked > 0 and redis.call('HMGET', counts, unpack(counted)) or {}
return { micros, 'claimed', head or '', last, last_member, suspects, unreadable, #gone, 0, claim_entry, known, records }
