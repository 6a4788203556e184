package redislock_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
)

// A program of docs/how-to/frameworks-go.md that runs.
type program struct {
	t       *testing.T
	command *exec.Cmd
	out     *bufio.Reader
}

func startProgram(t *testing.T, path string) *program {
	t.Helper()
	p := &program{t: t, command: exec.Command(path)}
	p.command.Stderr = os.Stderr
	out, err := p.command.StdoutPipe()
	if err == nil {
		err = p.command.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewReader(out)
	t.Cleanup(func() {
		_ = p.command.Process.Kill() // it may have ended already
		_ = p.command.Wait()
	})
	return p
}

func (p *program) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(line)
}

func (p *program) terminate() {
	p.t.Helper()
	if err := p.command.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
}

// rest is what else it prints, if it ends well.
func (p *program) rest() string {
	p.t.Helper()
	rest, err := io.ReadAll(p.out)
	if err == nil {
		err = p.command.Wait()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return strings.TrimSpace(string(rest))
}

// recipes builds the programs of the page, each by its name.
func recipes(t *testing.T) map[string]string {
	t.Helper()
	page, err := os.ReadFile("../../docs/how-to/frameworks-go.md")
	if err != nil {
		t.Fatal(err)
	}
	built, folder := map[string]string{}, t.TempDir()
	shown := regexp.MustCompile("(?s)<!-- (\\w+) -->\n```go\n(.*?)```").FindAllSubmatch(page, -1)
	if len(shown) > 0 { // its requests wait for so long that only the client can have ended a wait
		patient := bytes.Replace(shown[0][2], []byte("redislock.Wait(time.Second)"), []byte("redislock.Wait(time.Hour)"), 1)
		shown = append(shown, [][]byte{nil, []byte("patient"), patient})
	}
	for _, found := range shown {
		name := string(found[1])
		file, path := filepath.Join(folder, name+".go"), filepath.Join(folder, name)
		source := strings.ReplaceAll(string(found[2]), "127.0.0.1:6379", address)
		source = strings.ReplaceAll(source, "127.0.0.1:8080", "127.0.0.1:0")
		if err := os.WriteFile(file, []byte(source), 0o600); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("go", "build", "-o", path, file).CombinedOutput(); err != nil {
			t.Fatalf("%s: %s", name, out)
		}
		if out, err := exec.Command("gofmt", "-l", file).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("not as gofmt has it: %s", out)
		}
		built[name] = path
	}
	return built
}

// pay pays an invoice at this address: the status and the body.
func pay(ctx context.Context, address string) string {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+address+"/invoices/42/pay", nil)
	if err != nil {
		return err.Error()
	}
	client := http.Client{Timeout: slack, Transport: &http.Transport{DisableKeepAlives: true}}
	reply, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer reply.Body.Close() //nolint:errcheck // it was read
	body, err := io.ReadAll(reply.Body)
	return fmt.Sprint(reply.StatusCode, " ", string(body), err)
}

func TestTheRecipesRunAsTheyStand(t *testing.T) {
	built := recipes(t)
	if len(built) != 3 {
		t.Fatalf("the page has the recipes %v", built)
	}
	t.Run("http", func(t *testing.T) {
		requestsAreAnsweredEndTheirWaitsAndStop(t, startProgram(t, built["http"]), startProgram(t, built["patient"]))
	})
	t.Run("worker", func(t *testing.T) { oneWorkerDoesTheJobAndIsNotStoppedInItsMiddle(t, built["worker"]) })
}

func requestsAreAnsweredEndTheirWaitsAndStop(t *testing.T, server, patient *program) {
	at := strings.TrimPrefix(server.line(), "listens at ")
	if paid := pay(background, at); !strings.HasPrefix(paid, "200 paid with token ") {
		t.Errorf("it answers %s", paid)
	}
	locks := open(t)
	hold := acquire(t, locks.Lock("invoice:42"))
	if refused := pay(background, at); !strings.HasPrefix(refused, "423 ") {
		t.Errorf("it answers %s", refused)
	}
	leaving, leave := context.WithCancel(background)
	at = strings.TrimPrefix(patient.line(), "listens at ")
	answer := make(chan string, 1)
	ask := func(ctx context.Context) { answer <- pay(ctx, at) }
	go ask(leaving)
	waiting(t, locks, "invoice:42", 1)
	leave()
	waiting(t, locks, "invoice:42", 0)
	<-answer
	go ask(background)
	waiting(t, locks, "invoice:42", 1)
	server.terminate()
	patient.terminate()
	if err := hold.Release(background); err != nil {
		t.Error(err)
	}
	if last := <-answer; !strings.HasPrefix(last, "200 ") {
		t.Errorf("the last request is answered with %s", last)
	}
	if rest := server.rest() + patient.rest(); rest != "" || !isFree(locks, "invoice:42") {
		t.Errorf("it leaves the lock behind, and prints %q", rest)
	}
}

func oneWorkerDoesTheJobAndIsNotStoppedInItsMiddle(t *testing.T, path string) {
	first := startProgram(t, path)
	if line := first.line(); line != "writes the report" {
		t.Fatal(line)
	}
	first.terminate()
	second := startProgram(t, path)
	if line := second.line(); line != "another machine does it" {
		t.Fatal(line)
	}
	second.terminate()
	if rest := first.rest() + second.rest(); rest != "has written the report" {
		t.Errorf("they print %q", rest)
	}
	if isFree(open(t), "report") {
		t.Error("it is free before its minute is over")
	}
}
