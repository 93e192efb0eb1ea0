package main

import "io"

// checked is standard output that remembers the first failed write, so that no
// command has to look at each line it prints.
type checked struct {
	io.Writer
	err error
}

func (c *checked) Write(p []byte) (int, error) {
	n, err := c.Writer.Write(p)
	if c.err == nil {
		c.err = err
	}
	return n, err
}
