-- suspects: which occurrences ordinary claims leave out.

-- Reads the mark of the occurrence with this due. Returns 'unreadable' or 'suspect', else nil; and how many of its
-- claims have expired, which is 0 for an unreadable one.
local function left_out(mark, score)
  local named, what = string.match(mark or '', '^(%d+):(%w+)')
  local count = named == score and tonumber(what) or 0
  if named == score and what == 'unreadable' then
    return what, count
  end
  return count > 1 and 'suspect' or nil, count
end
