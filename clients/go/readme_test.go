package redislock_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// The test of README.md passes.
func TestTheTestOfTheReadmePasses(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	tests := regexp.MustCompile("(?s)```go\n(package job_test.*?)```").FindAllSubmatch(readme, -1)
	if len(tests) != 1 {
		t.Fatalf("%d tests are found", len(tests))
	}
	file := filepath.Join(t.TempDir(), "job_test.go")
	if err := os.WriteFile(file, tests[0][1], 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "test", "-v", file).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestTheReportIsWrittenOnceAMinute") {
		t.Errorf("%v: %s", err, out)
	}
}

// The programs of README.md run, and print what they say.
func TestTheProgramsOfTheReadmeRun(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	programs := regexp.MustCompile("(?s)```go\n(package main.*?)```").FindAllSubmatch(readme, -1)
	if len(programs) < 4 {
		t.Fatalf("only %d programs are found", len(programs))
	}
	for _, found := range programs {
		program := string(found[1])
		var wanted []string
		for _, line := range regexp.MustCompile(`// prints: (.*)`).FindAllStringSubmatch(program, -1) {
			wanted = append(wanted, line[1])
		}
		file := filepath.Join(t.TempDir(), "main.go")
		if err := os.WriteFile(file, []byte(strings.ReplaceAll(program, "127.0.0.1:6379", address)), 0o600); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command("go", "run", file).Output() // the log goes to standard error
		if printed := strings.TrimSpace(string(out)); err != nil || len(wanted) == 0 || printed != strings.Join(wanted, "\n") {
			t.Errorf("%v: it prints %q, not %q\n%s", err, printed, wanted, program)
		}
	}
}
