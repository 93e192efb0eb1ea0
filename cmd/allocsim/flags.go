package main

import (
	"errors"
	"fmt"
	"os"
	"strconv"
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

// atLeastOne are the flags, of any command, whose 0 is a mistake and no wish for
// the default, and what to give instead.
var atLeastOne = map[string]string{
	"workers": "the number of simulations to run at once, 1 or more",
	"batch":   "the number of items, 1 or more",
}

// checkCounts refuses a count below 1 where one was given.
func checkCounts(cmd *cobra.Command) (err error) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		give, counted := atLeastOne[f.Name]
		if n, e := strconv.ParseInt(f.Value.String(), 10, 64); counted && e == nil && n < 1 {
			err = fmt.Errorf("--%s %d: give %s", f.Name, n, give)
		}
	})
	return err
}

// flagError says what a flag takes when its value is wrong, and adds the
// nearest flag to an unknown one.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	var number *strconv.NumError
	if errors.As(err, &invalid) && errors.As(err, &number) {
		what := "a whole number"
		switch t := invalid.GetFlag().Value.Type(); {
		case t == "bool":
			what = "true or false"
		case strings.HasPrefix(t, "float"):
			what = "a number"
		}
		if errors.Is(number, strconv.ErrRange) {
			what += " that is not so large"
		}
		return fmt.Errorf("--%s %q: give %s", invalid.GetFlag().Name, invalid.GetValue(), what)
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return err
	}
	if short := unknown.GetSpecifiedShortnames(); short != "" {
		if _, e := os.Stat("-" + short); e == nil {
			return fmt.Errorf("%w; for the file of that name write ./-%s", err, short)
		}
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
