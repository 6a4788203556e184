// Package testclock says which clock the locks of this process go by.
package testclock

import "sync/atomic"

// IsUsed tells that a program has made a redislocktest.Server: locks go by time.Now, and so by the clock of a bubble of
// testing/synctest.
var IsUsed atomic.Bool
