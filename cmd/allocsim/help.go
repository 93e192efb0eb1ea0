package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"allocsim/internal/outfile"
	"allocsim/internal/table"
	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/policies"
	"allocsim/traces/formats"
)

// groups are the headings of the command list.
var groups = []*cobra.Group{
	{ID: "advise", Title: "Get advice:"},
	{ID: "look", Title: "Look into a recording:"},
	{ID: "make", Title: "Get a trace:"},
	{ID: "prove", Title: "Prove it:"},
}

// newTopics returns help texts that are no commands.
func newTopics() []*cobra.Command {
	topic := func(name, short, long string) *cobra.Command {
		return &cobra.Command{Use: name, Short: short, Long: long}
	}
	return []*cobra.Command{
		topic("policies", "The allocators that --policy takes", policyTopic()),
		topic("gpus", "The cards that --gpu takes", gpuTopic()),
		topic("formats", "The files that are read and written", formatTopic()),
		topic("alerts", "The expressions that --fail-on takes", alertTopic()),
		topic("exit-codes", "What exit codes mean", `0  yes, or done
1  the question's answer is no: does not fit, not exact, out of tolerance, an
   alert fired
2  the input or the usage is wrong; one line says what, where and what to try.
   Nothing half-written is left behind.
130, 143
   interrupted by Ctrl-C (SIGINT), by SIGTERM; no answer`),
		topic("words", "What the words in the output mean", `allocated      bytes of blocks that the program holds
active         allocated, and freed blocks that another stream still uses
requested      what the program asked for, before rounding
reserved       what the allocator holds from the driver; nvidia-smi shows
               this plus the CUDA context (about 0.6 GiB a process)
segment        a range the allocator got from the driver; a block is a piece
               of one
stranded       free bytes in segments that something else in them keeps
utilization    peak allocated / peak reserved
external fragmentation
               1 - largest free block / all free bytes
bound          the most bytes that live at once; no placement can need less
capacity       bytes of the device that the allocator can get
limit          bytes the allocator may take (the memory fraction)
retry          the allocator flushed its cache to serve a request
stall          modelled time spent in driver calls
span           the range over the orders in which the driver may place segments
at most        the highest reserved peak over these orders and over traces with
               slightly changed sizes
safe           the smallest capacity that works for every such order
headroom       what a card can give, less the safe capacity

More in docs/reading-the-numbers.md.`),
	}
}

func policyTopic() string {
	var b strings.Builder
	b.WriteString("--policy NAME[:OPTIONS] chooses the allocator; --conf STRING is short for\n--policy torch:STRING.\n")
	for _, r := range policies.Registered() {
		fmt.Fprintf(&b, "\n%s\n  %s\n", r.Name, wrap(r.Doc, 78, "  "))
		if r.Options != "" {
			fmt.Fprintf(&b, "  options: %s\n", wrap(r.Options, 68, "           "))
		}
	}
	return b.String()
}

func gpuTopic() string {
	var b strings.Builder
	b.WriteString(`--gpu CARD is a card of this list, or a MIG slice of one ("h100:1g.10gb"). Names
are taken as people write them. "usable" is what is left for the allocator of
one PyTorch process, at least and at most; where the figures come from is in
docs/planning.md. Your own reading beats it: --capacity SIZE with what
torch.cuda.mem_get_info() calls free, or a line in a --catalogue FILE.

`)
	t := table.New("card", ">usable GiB", "slices")
	for _, c := range gpus.All() {
		usable := "unknown"
		if low, high, ok := c.Usable(); ok {
			usable = fmt.Sprintf("%.1f … %.1f", float64(low)/(1<<30), float64(high)/(1<<30))
		}
		var slices []string
		for _, p := range c.Profiles {
			slices = append(slices, p.Name)
		}
		lines := strings.Split(wrap(strings.Join(slices, " "), 20, ""), "\n")
		t.Row(c.Name, usable, lines[0])
		for _, l := range lines[1:] {
			t.Row("", "", l)
		}
	}
	b.WriteString(strings.Join(t.Lines(nil), ""))
	return b.String()
}

func formatTopic() string {
	var b strings.Builder
	b.WriteString(`Files are read by their content, whatever their name; .gz and .zst are unpacked;
- is standard input. They are written (allocsim convert, synth) in the format
that the ending of the name tells; .gz or .zst after it packs.

`)
	t := table.New("format", "usual endings", "written to")
	for _, f := range formats.Formats() {
		from, to := "not read", ""
		if f.Read {
			from = strings.Join(f.Endings, " ")
		}
		if f.Write {
			to = "NAME" + f.Endings[0]
		}
		t.Row(f.Title, from, to)
	}
	b.WriteString(strings.Join(t.Lines(nil), ""))
	return b.String()
}

func alertTopic() string {
	var b strings.Builder
	b.WriteString("--fail-on 'NAME OP VALUE' ends with exit code 1 when it holds. OP is one of\n> >= < <= == !=; VALUE is a number, a share (90%) or a size (20GiB).\n\n")
	for _, n := range planner.AlertNames() {
		fmt.Fprintf(&b, "%-24s %s\n", n[0], n[1])
	}
	b.WriteString("\nThe usual limits of monitoring: --fail-on 'capacity_used>90%'\n--fail-on 'fragmentation>30%' --fail-on 'ooms>0'\n")
	return b.String()
}

// newMan writes the manual pages; packagers call it.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write manual pages into a folder",
		Hidden: true,
		Args:   arguments(1, 1, "one folder"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true
			for _, c := range append([]*cobra.Command{root}, root.Commands()...) {
				if c != root && (!c.IsAvailableCommand() || c.IsAdditionalHelpTopicCommand()) {
					continue
				}
				name := strings.ReplaceAll(c.CommandPath(), " ", "-") + ".1"
				file, err := outfile.New(filepath.Join(args[0], name), manualKind)
				if err != nil {
					return err
				}
				header := &doc.GenManHeader{Title: "ALLOCSIM", Section: "1", Source: "allocsim", Manual: "allocsim"}
				if err := file.Write(func(w io.Writer) error { return doc.GenMan(c, header, w) }); err != nil {
					return err
				}
			}
			return nil
		},
	}
}
