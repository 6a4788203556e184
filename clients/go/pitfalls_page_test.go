package redislock_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Each pitfall of the page has the tests that it names.
func TestThePitfallsAreTested(t *testing.T) {
	page, err := os.ReadFile("../../docs/internals/pitfalls.md")
	if err != nil {
		t.Fatal(err)
	}
	var sources strings.Builder
	for _, pattern := range []string{"*_test.go", "goredis/*_test.go"} {
		files, _ := filepath.Glob(pattern)
		for _, file := range files {
			source, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			sources.Write(source)
		}
	}
	rows := 0
	for line := range strings.SplitSeq(string(page), "\n") {
		cells := strings.Split(line, " | ")
		if len(cells) != 5 || strings.HasPrefix(line, "| pitfall") {
			continue
		}
		rows++
		tests := regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(cells[3], -1)
		if len(tests) == 0 && cells[3] != "-" {
			t.Errorf("no test: %s", line)
		}
		for _, test := range tests {
			if !strings.Contains(sources.String(), "\nfunc "+test[1]+"(") {
				t.Errorf("there is no %s", test[1])
			}
		}
	}
	if rows < 16 {
		t.Errorf("%d rows", rows)
	}
}
