// Package testclock records which clock the locks of this process use.
package testclock

import "sync/atomic"

// IsUsed is true once a program has made a redislocktest.Server: locks then use time.Now, and so the clock of a
// testing/synctest bubble.
var IsUsed atomic.Bool
