-- The scripts in lua/ run inside Redis: Lua 5.1 with these globals and no others.
std = "lua51"
globals = {}
read_globals = { "redis", "KEYS", "ARGV", "cjson", "cmsgpack", "struct", "bit" }
max_line_length = 140
