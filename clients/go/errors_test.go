package redislock

import (
	"os"
	"strings"
	"testing"
)

// Each error code is what the table of error codes says.
func TestEachErrorCodeIsWhatTheTableSays(t *testing.T) {
	kinds := map[string]error{
		"ErrAlreadyHeld": ErrAlreadyHeld,
		"ErrDeadlock":    ErrDeadlock, "ErrLockKindMismatch": ErrLockKindMismatch, "ErrNotConfirmed": ErrNotConfirmed,
		"ErrQuarantine": ErrQuarantine, "ErrQueueFull": ErrQueueFull, "ErrServerRefused": ErrServerRefused,
	}
	page, err := os.ReadFile("../../docs/reference/errors.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.SplitSeq(string(page), "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		rows++
		cells := strings.Split(strings.ReplaceAll(line[2:], "`", ""), " | ")
		text, kind := cells[0]+" "+cells[1], cells[7]
		if kind == "-" {
			kind = "ErrServerRefused"
		}
		if what, _, _ := judge(text); (what != fail) != (kind == "again") {
			t.Errorf("%s: judged as %v, and the table says %s", text, what, kind)
		}
		if kind != "again" && (kinds[kind] == nil || errorOf(text).Kind != kinds[kind]) {
			t.Errorf("%s: %v, and the table says %s", text, errorOf(text).Kind, kind)
		}
	}
	if rows < 10 {
		t.Errorf("%d rows", rows)
	}
}

func TestAnUnknownCodeIsAGeneralRefusalWithTheText(t *testing.T) {
	text := "NEWCODE that no client knows"
	if what, _, _ := judge(text); what != fail {
		t.Errorf("judged as %v", what)
	}
	if err := errorOf(text); err.Kind != ErrServerRefused || err.Message != text {
		t.Errorf("%v: %s", err.Kind, err.Message)
	}
}
