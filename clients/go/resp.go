package redislock

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// A reply of a server is nil, int64, string, bool, []any, map[string]any, refusal, or pushed.

// A refusal is an error that a server replied.
type refusal string

// A pushed message is one that a server sends unasked.
type pushed []any

const (
	longestText  = 64 << 20
	longestArray = 1 << 20
	deepest      = 16
)

var errNoRESP = errors.New("this peer does not speak RESP3")

// appendCommand appends a request.
func appendCommand(to []byte, words []string) []byte {
	to = append(strconv.AppendInt(append(to, '*'), int64(len(words)), 10), "\r\n"...)
	for _, word := range words {
		to = append(strconv.AppendInt(append(to, '$'), int64(len(word)), 10), "\r\n"...)
		to = append(append(to, word...), "\r\n"...)
	}
	return to
}

// readReply reads one reply. An error means that the connection failed; an error reply is returned as a reply.
func readReply(from *bufio.Reader, depth int) (any, error) {
	if depth > deepest {
		return nil, fmt.Errorf("%w: its reply is nested more than %d times", errNoRESP, deepest)
	}
	line, err := from.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		return nil, fmt.Errorf("%w: a line of its reply has no end", errNoRESP)
	}
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, fmt.Errorf("%w: it replied %q", errNoRESP, line)
	}
	kind, text := line[0], string(line[1:len(line)-2])
	switch kind {
	case '+', ',', '(':
		return text, nil
	case '-':
		return refusal(text), nil
	case ':':
		number, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%w: it replied %q", errNoRESP, line)
		}
		return number, nil
	case '#':
		return text == "t", nil
	case '_':
		return nil, nil
	case '$', '=', '!', '*', '~', '>', '%', '|':
		return readLong(from, kind, text, depth)
	}
	return nil, fmt.Errorf("%w: it replied %q", errNoRESP, line)
}

func readLong(from *bufio.Reader, kind byte, text string, depth int) (any, error) {
	size, err := strconv.Atoi(text)
	if err != nil || size > longestText {
		return nil, fmt.Errorf("%w: it replied a length of %q", errNoRESP, text)
	}
	if size < 0 {
		return nil, nil
	}
	switch kind {
	case '$', '=', '!':
		var body bytes.Buffer
		if _, err := io.CopyN(&body, from, int64(size)); err != nil {
			return nil, err
		}
		if _, err := from.Discard(2); err != nil {
			return nil, err
		}
		if kind == '!' {
			return refusal(body.String()), nil
		}
		return body.String(), nil
	case '*', '~', '>':
		items, err := readItems(from, size, depth)
		if kind == '>' {
			return pushed(items), err
		}
		return items, err
	}
	items, err := readItems(from, 2*size, depth)
	if err != nil {
		return nil, err
	}
	if kind == '|' { // attributes of the reply that follows
		return readReply(from, depth+1)
	}
	found := make(map[string]any, size)
	for i := 0; i+1 < len(items); i += 2 {
		if key, is := items[i].(string); is {
			found[key] = items[i+1]
		}
	}
	return found, nil
}

func readItems(from *bufio.Reader, count, depth int) ([]any, error) {
	if count > longestArray {
		return nil, fmt.Errorf("%w: it replied %d items", errNoRESP, count)
	}
	var items []any
	for range count {
		item, err := readReply(from, depth+1)
		if err != nil {
			return nil, err
		}
		items = append(items, item)
	}
	return items, nil
}
