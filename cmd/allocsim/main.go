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
	"syscall"

	_ "allocsim/policies/all"
)

// Exit codes (they are part of the contract with scripts).
const (
	exitOK    = 0
	exitNo    = 1 // the question's answer is no
	exitUsage = 2 // the input or the usage is wrong
)

// errNo ends a command whose answer is no; everything has been printed.
var errNo = errors.New("the answer is no")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal ends the work in order, the second one at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is the whole program with its surroundings as arguments.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot(stdin, stdout, stderr)
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	switch {
	case err == nil:
		return exitOK
	case errors.Is(err, errNo):
		return exitNo
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(stderr, "allocsim: stopped")
	default:
		fmt.Fprintf(stderr, "allocsim: %s\n", oneLine(err))
	}
	return exitUsage
}
