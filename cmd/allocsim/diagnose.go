package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/bytesize"
	"allocsim/internal/table"
	"allocsim/planner/diagnose"
	"allocsim/planner/explain"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
)

func newDiagnose(a *app) *cobra.Command {
	env := &environment{a: a}
	var text string
	var all bool
	rank := -1
	cmd := &cobra.Command{
		Use:        "diagnose [FILE | MESSAGE]",
		SuggestFor: []string{"oom", "explain", "why"},
		Short:      "Explain an out-of-memory message, or a snapshot that ends in one",
		Long: `Reads out-of-memory messages of any PyTorch since 2018 (CUDA, HIP, XPU, NPU,
MPS), vLLM, SGLang, TGI, llama.cpp, PaddlePaddle, JAX, TensorFlow, CuPy, RMM,
of drivers and libraries, and of the computer's own memory, from a file, a whole
log of any length or standard input, and says what ran out: the card, the
allocator's own holes, a private pool, a limit, memory that someone else holds;
what would help, what would not, and what to run next. Of several messages the
one that ended the program is explained. A snapshot that ends in an OOM works
too.`,
		Example: `  allocsim diagnose error.log
  python train.py 2>&1 | allocsim diagnose
  allocsim diagnose "CUDA out of memory. Tried to allocate 1.79 GiB …"
  allocsim diagnose --rank 3 slurm-4711.out
  allocsim diagnose snapshot.pickle`,
		Args: arguments(0, 1, "one file or message"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
			}
			if all && rank >= 0 {
				return fmt.Errorf("give --all or --rank, not both")
			}
			var opts diagnose.Options
			if v, err := conf.ParseVersion(env.torch); err == nil {
				opts.Version = v
			}
			spec, err := torch.Parse(env.conf, opts.Version)
			if err != nil {
				return fmt.Errorf("--conf: %w", err)
			}
			opts.Conf, _, _ = torch.ConfigOf(spec)
			var log diagnose.Log
			switch {
			case text != "":
				log, err = diagnose.Scan(strings.NewReader(text))
			case len(args) == 0 || args[0] == "-":
				log, err = interruptible(cmd.Context(), func() (diagnose.Log, error) { return diagnose.Scan(a.stdin) })
			case isMessage(args[0]):
				log, err = diagnose.Scan(strings.NewReader(args[0]))
			default:
				log, err = env.diagnosed(cmd.Context(), args[0], &opts)
			}
			if err != nil {
				return err
			}
			if rank >= 0 {
				if log, err = log.OfRank(rank); err != nil {
					return err
				}
			}
			return a.showDiagnosis(diagnose.DiagnoseLog(log, opts), all)
		},
	}
	env.addTrace(cmd)
	cmd.Flags().StringVar(&text, "text", "", "the `MESSAGE` itself")
	cmd.Flags().StringVar(&env.conf, "conf", "", "the configuration `STRING` that was set")
	cmd.Flags().BoolVar(&all, "all", false, "explain every message of the log")
	cmd.Flags().IntVar(&rank, "rank", -1, "explain the message of this rank `N`")
	return cmd
}

// isMessage reports whether an argument is a message itself: no file has that
// name, and it reads like one.
func isMessage(arg string) bool {
	if _, err := os.Stat(arg); err == nil {
		return false
	}
	_, err := diagnose.Parse(arg)
	return err == nil && strings.ContainsAny(arg, " \n\t_:")
}

// messagesIn reads the messages of a file and reports whether it is a text at
// all: what holds zero bytes is not, unless it is UTF-16.
func messagesIn(path string) (log diagnose.Log, text bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return log, false, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	head, err := r.Peek(512)
	if err != nil && err != io.EOF {
		return log, false, err
	}
	text = !bytes.ContainsRune(head, 0) || bytes.HasPrefix(head, []byte{0xff, 0xfe}) || bytes.HasPrefix(head, []byte{0xfe, 0xff})
	log, err = diagnose.Scan(r)
	return log, text, err
}

// diagnosed reads a file: a text with messages, or a recording.
func (e *environment) diagnosed(ctx context.Context, path string, opts *diagnose.Options) (diagnose.Log, error) {
	var text bool
	log, err := interruptible(ctx, func() (log diagnose.Log, err error) {
		log, text, err = messagesIn(path)
		return log, err
	})
	if err == nil || ctx.Err() != nil {
		return log, err
	}
	tr, openErr := e.open(ctx, path)
	switch {
	case openErr != nil && !text:
		return log, openErr
	case errors.Is(err, diagnose.ErrNoMessage) && openErr != nil:
		return log, fmt.Errorf("%s: %w", path, err)
	case openErr != nil:
		return log, err
	}
	msg, known, err := explain.Recording(ctx, tr, explain.Options{Conf: e.conf, ConfSet: e.confSet, Version: opts.Version, Path: path})
	if err != nil {
		return log, err
	}
	*opts = known
	return diagnose.Log{Messages: []diagnose.Message{msg}}, nil
}

// showDiagnosis prints the explanation of the message that counts, or of all.
func (a *app) showDiagnosis(l diagnose.LogReport, all bool) error {
	if a.json {
		return a.printJSON(l)
	}
	if len(l.Messages) > 1 {
		if err := a.showMessages(l); err != nil {
			return err
		}
	}
	if !all {
		return a.showReport(l.Report)
	}
	for i, m := range l.Messages {
		if i > 0 {
			a.printf("\n")
		}
		a.printf("message %d of %d\n", i+1, len(l.Messages))
		if err := a.showReport(m.Report); err != nil {
			return err
		}
	}
	return nil
}

// showMessages prints the table of a log's messages.
func (a *app) showMessages(l diagnose.LogReport) error {
	t := table.New("", ">rank", ">GPU", "time", ">requested", "verdict")
	number := func(n *int) string {
		if n == nil {
			return "-"
		}
		return strconv.Itoa(*n)
	}
	for _, m := range l.Messages {
		mark, requested, when := "", "-", m.Time
		if m.Explained {
			mark = "*"
		}
		if m.Numbers.Requested != nil {
			requested = size(*m.Numbers.Requested)
		}
		if when == "" {
			when = "-"
		}
		verdict := string(m.Verdict)
		if m.Handled {
			verdict += " (handled)"
		}
		t.Row(mark, number(m.Rank), number(m.GPU), when, requested, verdict)
	}
	if err := a.print(t); err != nil {
		return err
	}
	a.printf("\n")
	return nil
}

func (a *app) showReport(r diagnose.Report) error {
	verdict := string(r.Verdict)
	for i, v := range r.Also {
		if verdict += ", "; i == len(r.Also)-1 {
			verdict += "and "
		}
		verdict += string(v)
	}
	a.printf("%s\n%s\n\n", a.strong(verdict), wrap(r.Reason, 80, ""))
	if r.Numbers != (diagnose.Numbers{}) {
		if err := a.print(numbersTable(r)); err != nil {
			return err
		}
		a.printf("\n")
	}
	for i, s := range r.Advice {
		if s != "next: "+r.Next {
			a.printf("%s\n", wrap(fmt.Sprintf("%d. %s", i+1, s), 80, "   "))
		}
	}
	if len(r.Outlook) > 0 {
		a.printf("\nwhat would be left for later requests (negative: still missing)\n")
		t := table.New("", ">")
		for _, o := range r.Outlook {
			t.Row("  "+o.Choice, size(o.Low)+" to "+size(o.High))
		}
		if err := a.print(t); err != nil {
			return err
		}
	}
	// Commands are for copying, so they are not wrapped.
	if r.Next != "" {
		a.printf("\nnext:\n  %s\n", strings.NewReplacer(" && ", "\n  ", "; ", "\n  ").Replace(r.Next))
	}
	a.notes(r.Notes)
	return nil
}

// numbersTable is the account that a message gives.
func numbersTable(r diagnose.Report) *table.Table {
	t := table.New("", ">")
	row := func(name, field string, n *int64) {
		if n == nil {
			return
		}
		// A wide span is what the message leaves open, not a rounded digit.
		if half := r.Rounding[field]; half > 64*bytesize.MiB && half > *n/50 {
			t.Row(name, size(max(0, *n-half))+" to "+size(*n+half))
			return
		}
		t.Row(name, size(*n))
	}
	n := r.Numbers
	row("requested", "requested", n.Requested)
	row("total", "total", n.Total)
	row("free", "free", n.Free)
	row("allocated", "allocated", n.Allocated)
	row("reserved", "reserved", n.Reserved)
	row("reserved but unallocated", "unallocated", n.Unallocated)
	row("free in private pools", "private_pools", n.PrivatePools)
	row("allowed", "allowed", n.Allowed)
	row("this process, in all", "process", n.Process)
	row("outside this allocator", "outside", n.Outside)
	row("  of it, this process", "context", n.Context)
	row("  of it, other processes", "other_processes", n.OtherProcesses)
	row("largest free block", "largest_free", n.LargestFree)
	// Below a limit, the room on the device says nothing.
	if n.Short != nil && r.Verdict != diagnose.Limit {
		if *n.Short > 0 {
			row("short even without waste", "short", n.Short)
		} else {
			t.Row("to spare without waste", size(-*n.Short))
		}
	}
	return t
}
