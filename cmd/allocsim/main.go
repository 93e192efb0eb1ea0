// Command allocsim simulates GPU memory allocators and answers what-if
// questions about recordings: which configuration, which card, what if it were
// bigger. See README.md, and `allocsim help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"

	_ "allocsim/policies/all"
)

// Exit codes (they are part of the contract with scripts).
const (
	exitOK    = 0
	exitNo    = 1 // the question's answer is no
	exitUsage = 2 // the input or the usage is wrong

	// exitInterrupted is for SIGINT, as in shells; SIGTERM is 143.
	exitInterrupted = 130
)

// errNo ends a command whose answer is no; everything has been printed.
var errNo = errors.New("the answer is no")

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		s := <-signals
		// The first signal ends the work in order, the second one at once.
		signal.Stop(signals)
		cancel(&interrupted{s})
	}()
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// interrupted is why a signal ended the work.
type interrupted struct{ signal os.Signal }

func (i *interrupted) Error() string { return i.signal.String() }

// code is the exit code that shells give a program ended by the signal.
func (i *interrupted) code() int {
	if n, ok := i.signal.(syscall.Signal); ok {
		return 128 + int(n)
	}
	return exitInterrupted
}

// joinCounts makes "--span 40" "--span=40": the number is optional, so that the
// flag alone takes none, but people write it both ways.
func joinCounts(args []string) []string {
	var out []string
	for i := 0; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			return append(out, args[i:]...)
		}
		if a == "--span" && i+1 < len(args) {
			if _, err := strconv.Atoi(args[i+1]); err == nil {
				i++
				a += "=" + args[i]
			}
		}
		out = append(out, a)
	}
	return out
}

// run is the whole program with its surroundings as arguments.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	out := &checked{Writer: stdout}
	root := newRoot(stdin, out, stderr)
	root.SetArgs(joinCounts(args))
	err := root.ExecuteContext(ctx)
	if out.err != nil && (err == nil || errors.Is(err, errNo)) {
		err = fmt.Errorf("the output is not whole: %w", out.err)
	}
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errNo):
		return exitNo
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "allocsim: stopped")
		var i *interrupted
		if errors.As(context.Cause(ctx), &i) {
			return i.code()
		}
		return exitInterrupted
	default:
		fmt.Fprintf(stderr, "allocsim: %s\n", oneLine(err))
	}
	return exitUsage
}
