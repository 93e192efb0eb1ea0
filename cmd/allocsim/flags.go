package main

import (
	"errors"
	"fmt"
	"strings"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"allocsim/internal/bytesize"
	"allocsim/internal/edit"
)

// sizeFlag is a size in bytes as people type it.
type sizeFlag int64

func (s *sizeFlag) String() string {
	if *s == 0 {
		return ""
	}
	return bytesize.Format(int64(*s))
}

func (s *sizeFlag) Set(v string) error {
	n, err := bytesize.Parse(v)
	switch {
	case err != nil:
	case n == 0:
		err = errors.New("a size of 0 makes no sense; leave the flag out for no limit")
	case n < 1<<20 && !strings.ContainsFunc(v, unicode.IsLetter):
		// 24 is 24 bytes, which nobody means.
		err = fmt.Errorf("%s bytes; give a unit, such as %sGiB", v, v)
	}
	*s = sizeFlag(n)
	return err
}

func (s *sizeFlag) Type() string { return "SIZE" }

// flagError adds the nearest flag to an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	name := unknown.GetSpecifiedName()
	best, bestDistance := "", 3
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if d := edit.Distance(name, f.Name); d < bestDistance || strings.HasPrefix(f.Name, name) && best == "" {
			best, bestDistance = f.Name, d
		}
	})
	if best != "" {
		return fmt.Errorf("%w; did you mean --%s? (%s --help lists the flags)", err, best, cmd.CommandPath())
	}
	return fmt.Errorf("%w; %s --help lists the flags", err, cmd.CommandPath())
}
