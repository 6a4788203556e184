-- What redis_exporter is to read of the module: redis_exporter --script redislock.lua
--
-- INFO ALL, which the exporter sends by itself, leaves out what modules say. This script asks for it and gives
-- back names and numbers in turn. docs/operations/monitoring.md says how Prometheus makes metrics of them.
local values = {}
-- Each name becomes a series of its own in Prometheus, so no more are told than these, those with the highest counts.
local NAMES_MAX = 20

local function add(name, value)
    values[#values + 1] = name
    values[#values + 1] = tostring(value)
end

local info = redis.call('INFO', 'redislock')
local is_loaded = 0
for name, value in string.gmatch(info, '(redislock_[%w_]+):([^\r\n]*)') do
    is_loaded = 1
    local histogram = string.match(name, '^(.*)_histogram$')
    if histogram then
        -- "le_1=3,le_2=3,...,le_inf=9,sum=1204"
        for bound, count in string.gmatch(value, 'le_(%w+)=(%d+)') do
            add(histogram .. '_le_' .. bound, count)
        end
        add(histogram .. '_count', string.match(value, 'le_inf=(%d+)'))
        add(histogram .. '_sum', string.match(value, 'sum=(%d+)'))
    elseif name == 'redislock_top_contended' then
        -- "db=0,name=busy,count=2,error=0;...", the highest count first; empty unless redislock.top-contended is set
        local told = 0
        for db, lock, count in string.gmatch(value, 'db=(%d+),name=([^,;]*),count=(%d+)') do
            told = told + 1
            if told <= NAMES_MAX then
                add(name .. ':' .. db .. ':' .. lock, count)
            end
        end
    elseif name == 'redislock_role' then
        add('redislock_is_primary', value == 'primary' and 1 or 0)
    elseif name == 'redislock_confirm' then
        add('redislock_is_confirmed', value == 'local' and 0 or 1)
    elseif name ~= 'redislock_commit' and tonumber(value) then
        -- A commit such as 9e5166734002 passes for a number, and then the exporter tells nothing at all.
        add(name, value)
    end
end
add('redislock_is_loaded', is_loaded)
return values
