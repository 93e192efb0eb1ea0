package main

import (
	"context"
	"time"
)

// grace is how long a reader may take to notice that it is to stop, and to
// remove its temporary files.
const grace = time.Second

// interruptible returns what f returns, but does not wait for it when ctx has
// ended: a terminal or a pipe that nobody writes to blocks a read for ever.
func interruptible[T any](ctx context.Context, f func() (T, error)) (T, error) {
	type outcome struct {
		value T
		err   error
	}
	done := make(chan outcome, 1)
	go func() {
		v, err := f()
		done <- outcome{v, err}
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
	}
	select {
	case o := <-done:
		return o.value, o.err
	case <-time.After(grace):
		var none T
		return none, ctx.Err()
	}
}
