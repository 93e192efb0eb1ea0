package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"allocsim/internal/outfile"
	"allocsim/plots"
	"allocsim/traces/formats"
)

// Kinds of files that commands write. Traces are told apart by package formats.
var (
	figureKinds = map[plots.Format]outfile.Kind{
		plots.PNG: {Name: "a PNG figure", Is: outfile.Prefix("\x89PNG\r\n\x1a\n")},
		plots.SVG: {Name: "an SVG figure", Is: outfile.Head(func(head []byte) bool {
			return bytes.Contains(head, []byte("<svg")) && !bytes.Contains(bytes.ToLower(head), []byte("<html"))
		})},
		plots.PDF: {Name: "a PDF figure", Is: outfile.Prefix("%PDF-")},
	}
	reportKind = outfile.Kind{Name: "an HTML page", Is: outfile.Head(func(head []byte) bool {
		return bytes.Contains(bytes.ToLower(head), []byte("<html"))
	})}
	junitKind = outfile.Kind{Name: "a JUnit report", Is: outfile.Head(func(head []byte) bool {
		return bytes.Contains(head, []byte("<testsuite"))
	})}
	costKind = outfile.Kind{Name: "a table of costs", Is: outfile.Head(func(head []byte) bool {
		return bytes.Contains(head, []byte(`"driver":`)) && bytes.Contains(head, []byte(`"cuMemAlloc":`))
	})}
	manualKind = outfile.Kind{Name: "a manual page of allocsim", Is: outfile.Head(func(head []byte) bool {
		return bytes.Contains(head, []byte(`.TH "ALLOCSIM"`))
	})}
	recorderKind = outfile.Kind{Name: "the recorder", Is: outfile.Head(func(head []byte) bool {
		return bytes.Contains(head, []byte(`"""Record what a PyTorch program asks`))
	})}
)

// outputFlag marks a flag that names a file to write.
const outputFlag = "allocsim_output"

// addOutput declares a flag that names a file to write, which [app.output]
// opens.
func addOutput(cmd *cobra.Command, path *string, name, short, usage string) {
	cmd.Flags().StringVarP(path, name, short, "", usage)
	cmd.Flags().Lookup(name).Annotations = map[string][]string{outputFlag: {}}
}

func isOutput(f *pflag.Flag) bool {
	_, ok := f.Annotations[outputFlag]
	return ok
}

// output is the file that a flag made by addOutput names; nil without the flag.
func (a *app) output(cmd *cobra.Command, flag string, kind outfile.Kind) (*outfile.File, error) {
	return a.outputOf(cmd, flag, func(path string, sources []outfile.Source) (*outfile.File, error) {
		return outfile.New(path, kind, sources...)
	})
}

// traceOutput is output for a flag that names a trace to write.
func (a *app) traceOutput(cmd *cobra.Command, flag string) (*outfile.File, error) {
	return a.outputOf(cmd, flag, func(path string, sources []outfile.Source) (*outfile.File, error) {
		return formats.Output(path, sources...)
	})
}

func (a *app) outputOf(cmd *cobra.Command, flag string, open func(string, []outfile.Source) (*outfile.File, error)) (*outfile.File, error) {
	f := cmd.Flags().Lookup(flag)
	if !f.Changed {
		return nil, nil
	}
	if f.Value.String() == "" {
		return nil, fmt.Errorf("--%s is empty; is a variable of the shell not set?", flag)
	}
	return open(f.Value.String(), a.sources(cmd, cmd.Flags().Args(), f))
}

// sources are all files that a command line names but for the value of the
// flag out: its arguments, their sidecars, standard input and every flag's
// values, of which some are names. What is no file's name does no harm.
func (a *app) sources(cmd *cobra.Command, args []string, out *pflag.Flag) []outfile.Source {
	var list []outfile.Source
	add := func(path, what string) {
		if path == "" || path == "-" {
			return
		}
		list = append(list, outfile.Source{Path: path, What: what})
		if side := formats.Sidecar(path); side != "" {
			list = append(list, outfile.Source{Path: side, What: "the sidecar of " + path})
		}
	}
	for _, arg := range args {
		add(arg, "the input")
	}
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if f == out {
			return
		}
		values := []string{f.Value.String()}
		if s, ok := f.Value.(pflag.SliceValue); ok {
			values = s.GetSlice()
		}
		what := "what --" + f.Name + " names"
		for _, v := range values {
			add(v, what)
			if _, path, ok := strings.Cut(v, "="); ok { // 8=bs8.pickle
				add(path, what)
			}
		}
	})
	if in, ok := a.stdin.(*os.File); ok {
		if st, err := in.Stat(); err == nil && st.Mode().IsRegular() {
			list = append(list, outfile.Source{Info: st, What: "what standard input is read from"})
		}
	}
	return list
}

// writeText is a function that writes s.
func writeText(s string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, s)
		return err
	}
}
