module redislock.example/go/rueidis

go 1.25.0

require (
	github.com/redis/rueidis v1.0.79
	redislock.example/go v0.3.0
)

require golang.org/x/sys v0.47.0 // indirect
