//go:build !linux

package redislock

import "time"

var began = time.Now()

func bootTime() moment { return moment(time.Since(began)) }
