package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"syscall"
	"testing"
)

// TestInterruptBlockedRead: Ctrl-C ends a command that waits for input which
// never comes.
func TestInterruptBlockedRead(t *testing.T) {
	for _, args := range [][]string{{"inspect", "-"}, {"diagnose"}, {"tune", "-"}} {
		stdin, open := io.Pipe()
		defer open.Close()
		for cause, want := range map[error]int{nil: 130, &interrupted{os.Interrupt}: 130, &interrupted{syscall.SIGTERM}: 143} {
			ctx, cancel := context.WithCancelCause(context.Background())
			cancel(cause)
			var stdout, stderr bytes.Buffer
			if code := run(ctx, args, stdin, &stdout, &stderr); code != want {
				t.Errorf("%v: exit code %d after %v", args, code, cause)
			}
			if got := stderr.String(); got != "allocsim: stopped\n" || stdout.Len() > 0 {
				t.Errorf("%v: %q, %q", args, got, stdout.String())
			}
		}
	}
}
