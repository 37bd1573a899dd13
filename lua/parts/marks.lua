-- marks: what the mark of an occurrence says, and the mark of one that leaves its claim without an end.

-- A mark is "<due>:<crashes>", or "<due>:unreadable", with ":<crashes>" behind it if the occurrence was handed out before.
local function read_mark(mark)
  return string.match(mark or '', '^(%d+):(%a*):?(%d*)$')
end

-- Whether a mark says that the occurrence with this due was handed out before: it has a count.
local function was_handed_out(mark, due)
  local named, _, count = read_mark(mark)
  return named == due and count ~= ''
end

-- The mark after a settle returned the occurrence: false if it has to go, nil if nothing changes.
local function mark_of_returned(due, kind, mark)
  local named, _, count = read_mark(mark)
  count = named == due and count or ''
  if kind == 'unreadable' then
    return due .. ':unreadable' .. (count ~= '' and ':' .. count or '')
  elseif kind == 'begun' or count ~= '' then
    return due .. ':' .. (count ~= '' and count or '0')
  elseif named == due then
    -- It was marked unreadable, and this holder could read it.
    return false
  end
end

-- Writes the marks of returned occurrences, given as due, id, due, id... `kinds` says how each of them returned.
local function write_marks(crashes, returned, kinds, any_mark)
  local ids = {}
  for i = 1, #kinds do
    ids[i] = returned[2 * i]
  end
  local marks = any_mark and redis.call('HMGET', crashes, unpack(ids)) or {}
  for i = 1, #ids do
    local mark = mark_of_returned(returned[2 * i - 1], kinds[i], marks[i])
    if mark then
      redis.call('HSET', crashes, ids[i], mark)
    elseif mark == false then
      redis.call('HDEL', crashes, ids[i])
    end
  end
end

-- The mark after the claim of the occurrence expired.
local function mark_of_expired(due, mark)
  local named, what, count = read_mark(mark)
  if named == due and what ~= '' then
    -- An unreadable record kills no instance, so the count stays. It becomes 0 because this holder may have published it.
    return due .. ':unreadable:' .. (count ~= '' and count or '0')
  end
  return due .. ':' .. string.format('%.0f', (named == due and tonumber(count) or 0) + 1)
end
