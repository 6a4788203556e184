module redislock.example/go

go 1.25.0

require golang.org/x/sys v0.40.0

require go.uber.org/goleak v1.3.0
