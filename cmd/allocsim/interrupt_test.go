package main

import (
	"bytes"
	"context"
	"io"
	"testing"
)

// TestInterruptBlockedRead: Ctrl-C ends a command that waits for input which
// never comes.
func TestInterruptBlockedRead(t *testing.T) {
	for _, args := range [][]string{{"inspect", "-"}, {"diagnose"}, {"tune", "-"}} {
		stdin, open := io.Pipe()
		defer open.Close()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		var stdout, stderr bytes.Buffer
		if code := run(ctx, args, stdin, &stdout, &stderr); code != exitUsage {
			t.Errorf("%v: exit code %d", args, code)
		}
		if got := stderr.String(); got != "allocsim: stopped\n" || stdout.Len() > 0 {
			t.Errorf("%v: %q, %q", args, got, stdout.String())
		}
	}
}
