package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// app is what all commands share.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	json, quiet    bool
}

func newRoot(stdin io.Reader, stdout, stderr io.Writer) *cobra.Command {
	a := &app{stdin: stdin, stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "allocsim",
		Short: "Simulate GPU memory allocators and answer what-if questions about recordings",
		Long: `allocsim replays what a program asked of its GPU memory allocator under any
allocator policy, on any size of device, and answers:

  Why did my job run out of memory, and which setting cures it?
      allocsim tune snapshot.pickle
  Which card does it fit?
      allocsim plan snapshot.pickle
  I only have the error message.
      allocsim diagnose error.log

To record a job: allocsim record --help`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print one JSON document")
	root.PersistentFlags().BoolVarP(&a.quiet, "quiet", "q", false, "no notes, no progress")
	root.SetFlagErrorFunc(flagError)
	for _, add := range []func(*app) *cobra.Command{
		newInspect, newReplay, newCheck, newCompare, newTune, newPlan, newScale, newSynth,
		newConvert, newConf, newDiagnose, newRecord,
	} {
		root.AddCommand(add(a))
	}
	return root
}

// oneLine is an error as one line.
func oneLine(err error) string {
	return strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " ")
}
