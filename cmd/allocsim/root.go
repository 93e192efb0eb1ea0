package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/text"
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
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          unknownCommand,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		// Before the command itself, whatever it is.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error { return checkCounts(cmd) },
	}
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.PersistentFlags().BoolVar(&a.json, "json", false, "print one JSON document")
	root.PersistentFlags().BoolVarP(&a.quiet, "quiet", "q", false, "no notes, no progress")
	root.SetFlagErrorFunc(flagError)
	root.SuggestionsMinimumDistance = 2
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "Flags.FlagUsages ", "Flags.FlagUsagesWrapped 80 "))
	root.AddGroup(groups...)
	add := func(group string, cmds ...*cobra.Command) {
		for _, c := range cmds {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add("advise", newTune(a), newPlan(a), newScale(a), newDiagnose(a), newConf(a))
	add("look", newInspect(a), newReplay(a), newCompare(a), newPlot(a), newReport(a))
	add("make", newRecord(a), newSynth(a), newConvert(a))
	add("prove", newCheck(a), newValidate(a))
	root.AddCommand(newTopics()...)
	root.AddCommand(newMan())
	addCompletions(root)
	return root
}

// oneLine is an error as one line.
func oneLine(err error) string {
	return text.Printable(strings.Join(strings.Fields(strings.ReplaceAll(err.Error(), "\n", "; ")), " "))
}

// unknownCommand names the nearest command to one that does not exist.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	hint := "allocsim help lists the commands"
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		hint = "did you mean " + near[0] + "? (" + hint + ")"
	}
	return fmt.Errorf("unknown command %q; %s", args[0], hint)
}

// arguments checks how many arguments a command got; what names them.
func arguments(atLeast, atMost int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) < atLeast:
			return fmt.Errorf("%s needs %s; %s --help shows examples", cmd.CommandPath(), what, cmd.CommandPath())
		case atMost >= 0 && len(args) > atMost:
			return fmt.Errorf("%s takes %s, but %q is one too many; %s --help shows examples", cmd.CommandPath(), what, args[atMost], cmd.CommandPath())
		}
		return nil
	}
}
