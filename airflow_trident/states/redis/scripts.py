"""The atomic steps in Redis, as Lua scripts. A script reads and computes everything before it writes anything except
its own scratch keys, because Redis does not roll back a script that fails in the middle.

Each script first compares the record of its state with the text that the caller has decided on. A repeated or late
request finds another text and changes nothing.
"""

from __future__ import annotations

from enum import StrEnum


class Said(StrEnum):
    """Answers of a script."""

    DONE = "DONE"
    MOVED = "MOVED"
    """The record is not the one that was decided on: read it and decide again."""
    UNSTAGED = "UNSTAGED"
    """The staged data is missing or expired: stage it again."""
    TAKEN = "TAKEN"
    """There is no record, but the key of the data holds something else."""
    DAMAGED = "DAMAGED"
    """Some of the values before the highest transaction are missing."""
    OVERFLOW = "OVERFLOW"
    """A sum is beyond 64 bits."""
    FOREIGN = "FOREIGN"
    """A stored number was written by somebody else: it is no whole number."""
    REPLICA = "REPLICA"
    """The server is a replica that takes writes: it loses them when it gets its primary's data."""


class Turn(StrEnum):
    """Kinds of steps."""

    MARK = "mark"
    """Writes only the record."""
    HIGHEST = "highest"
    REPLACE = "replace"
    """First takes back the batch of the highest transaction."""
    LATE = "late"
    """Below the highest transaction: also changes the values kept to take that one back."""


COMMON = """
local GONE, CHUNK = '\\\\D', 4000
-- false too where this user may not ask
local function is_replica()
  local answer = redis.pcall('INFO', 'replication')
  return type(answer) == 'string' and string.find(answer, 'role:slave', 1, true) ~= nil
end
local function pairs_of(key)
  local flat, names, values = redis.call('HGETALL', key), {}, {}
  for i = 1, #flat, 2 do
    names[#names + 1] = flat[i]
    values[flat[i]] = flat[i + 1]
  end
  return names, values
end
local function in_chunks(list, act)
  for i = 1, #list, CHUNK do
    act(unpack(list, i, math.min(i + CHUNK - 1, #list)))
  end
end
local function write_hash(key, values)
  local put, removed = {}, {}
  for name, value in pairs(values) do
    if value == GONE then
      removed[#removed + 1] = name
    else
      put[#put + 1] = name
      put[#put + 1] = value
    end
  end
  in_chunks(removed, function(...) redis.call('HDEL', key, ...) end)
  in_chunks(put, function(...) redis.call('HSET', key, ...) end)
end
"""

APPLY = (
    COMMON
    + """
local record, stage, before, stage_before, data = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local expected, new, turn, layout, adds, keeps = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1', ARGV[6] == '1'
local staged_count, staged_before_count = tonumber(ARGV[7]), tonumber(ARGV[8])
local before_count, seen_keys, op = tonumber(ARGV[9]), ARGV[10], ARGV[11]

-- how many keys there are, or one that must be there: so it is noticed if the data go and the record stays
local function write_record()
  if layout == 'hash' then
    new = string.sub(new, 1, -2) .. ',"keys":' .. string.format('%d', redis.call('HLEN', data)) .. '}'
  end
  redis.call('SET', record, new)
end
local function ended(said)
  redis.call('UNLINK', stage, stage_before)
  return said
end

if is_replica() then return 'REPLICA' end
if (redis.call('GET', record) or '') ~= expected then return ended('MOVED') end
if seen_keys ~= '' and redis.call('HLEN', data) ~= tonumber(seen_keys) then return ended('MOVED') end
if turn == 'mark' then
  local witness = layout ~= 'hash' and redis.call('GET', data)
  if witness and string.find(expected, string.sub(witness, 1, #op), 1, true) then
    redis.call('SET', data, op .. string.sub(witness, #op + 1))
  end
  write_record()
  return 'DONE'
end
if redis.call('HLEN', stage) ~= staged_count or redis.call('HLEN', stage_before) ~= staged_before_count then
  return ended('UNSTAGED')
end
if expected == '' and redis.call('EXISTS', data) == 1 then return ended('TAKEN') end
if turn ~= 'highest' and redis.call('HLEN', before) ~= before_count then return ended('DAMAGED') end

-- an address is a field of the hash `data`, or of one of several hashes, or the end of a key's name
local function split(address)
  local at = string.find(address, ':', 1, true)
  return data .. ':' .. string.sub(address, 1, at - 1), string.sub(address, at + 1)
end
local function by_hash(addresses)
  local groups = {}
  for _, address in ipairs(addresses) do
    local key, field = split(address)
    local group = groups[key] or {fields = {}, addresses = {}}
    groups[key] = group
    table.insert(group.fields, field)
    table.insert(group.addresses, address)
  end
  return groups
end
local function fetch(addresses)
  local found, at = {}, 0
  local function take(names, command, ...)
    for _, value in ipairs(redis.call(command, ...)) do
      at = at + 1
      found[names[at]] = value
    end
  end
  if layout == 'string' then
    local keys = {}
    for i, address in ipairs(addresses) do keys[i] = data .. ':' .. address end
    in_chunks(keys, function(...) take(addresses, 'MGET', ...) end)
  elseif layout == 'hash' then
    in_chunks(addresses, function(...) take(addresses, 'HMGET', data, ...) end)
  else
    for key, group in pairs(by_hash(addresses)) do
      at = 0
      in_chunks(group.fields, function(...) take(group.addresses, 'HMGET', key, ...) end)
    end
  end
  return found
end
local function store(values)
  if layout == 'hash' then return write_hash(data, values) end
  if layout == 'string' then
    local put, removed = {}, {}
    for address, value in pairs(values) do
      if value == GONE then
        removed[#removed + 1] = data .. ':' .. address
      else
        put[#put + 1] = data .. ':' .. address
        put[#put + 1] = value
      end
    end
    in_chunks(removed, function(...) redis.call('DEL', ...) end)
    in_chunks(put, function(...) redis.call('MSET', ...) end)
    return
  end
  local groups = {}
  for address, value in pairs(values) do
    local key, field = split(address)
    groups[key] = groups[key] or {}
    groups[key][field] = value
  end
  for key, group in pairs(groups) do write_hash(key, group) end
end

local function write_witness(values)
  local witness = ''
  for address, value in pairs(values) do
    if value ~= GONE then
      witness = layout == 'string' and data .. ':' .. address or split(address)
      break
    end
  end
  redis.call('SET', data, op .. ' ' .. witness)
end

-- doubles hold integers up to 2^53; beyond, the server adds on a scratch field, which fails if 64 bits are too few
local EXACT = 2 ^ 52
local foreign = false
local function add(left, right)
  if left ~= '0' and not string.find(left, '^%-?[1-9]%d*$') then
    foreign = true
    return nil
  end
  local a, b = tonumber(left), tonumber(right)
  if math.abs(a) < EXACT and math.abs(b) < EXACT then return string.format('%.0f', a + b) end
  redis.call('HSET', stage, 'scratch', left)
  local answer = redis.pcall('HINCRBY', stage, 'scratch', right)
  if type(answer) == 'table' and answer.err then return nil end
  return redis.call('HGET', stage, 'scratch')
end
local function merged(old, value)
  if not adds or not old or old == GONE then return value end
  return add(old, value)
end

local addresses, staged = pairs_of(stage)
local _, kept = {}, {}
if turn ~= 'highest' then _, kept = pairs_of(before) end
local stored = fetch(addresses)
local values, values_before = {}, {}
if turn == 'replace' then
  for address, value in pairs(kept) do values[address] = value end
end
for _, address in ipairs(addresses) do
  local old = values[address] or stored[address] or GONE
  local value = merged(old, staged[address])
  if not value then return ended(foreign and 'FOREIGN' or 'OVERFLOW') end
  values[address] = value
  if turn ~= 'late' then
    values_before[address] = old
  elseif adds and kept[address] then
    value = merged(kept[address], staged[address])
    if not value then return ended(foreign and 'FOREIGN' or 'OVERFLOW') end
    values_before[address] = value
  end
end
if turn == 'late' and not adds then _, values_before = pairs_of(stage_before) end

-- from here on nothing can fail
store(values)
if turn ~= 'late' then redis.call('UNLINK', before) end
if keeps then
  local flat = {}
  for address, value in pairs(values_before) do
    flat[#flat + 1] = address
    flat[#flat + 1] = value
  end
  in_chunks(flat, function(...) redis.call('HSET', before, ...) end)
end
if layout ~= 'hash' then write_witness(values) end
write_record()
return ended('DONE')
"""
)
"""KEYS: record, stage, before, stage before, data. ARGV: expected and new record, turn, layout, adds, keeps, how many
keys `stage`, `stage before` and `before` must have, how many keys the hash `data` had when the step was decided (empty:
not known, or another layout), and the id of the request."""
