package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/internal/plural"
	"allocsim/internal/table"
	"allocsim/planner/diagnose"
	"allocsim/policies"
	"allocsim/policies/torch"
	"allocsim/policies/torch/conf"
	"allocsim/sim"
	"allocsim/sim/recovery"
)

// maxMessage bounds how much of a log is read, in bytes.
const maxMessage = 64 << 20

func newDiagnose(a *app) *cobra.Command {
	env := &environment{a: a}
	var text string
	var words bool
	cmd := &cobra.Command{
		Use:        "diagnose [FILE]",
		SuggestFor: []string{"oom", "explain", "why"},
		Short:      "Explain an out-of-memory message, or a snapshot that ends in one",
		Long: `Reads an out-of-memory message of any PyTorch since 2018, of JAX, TensorFlow,
CuPy or RMM, from a file, a whole log or standard input, and says what ran out:
the card, the allocator's own holes, a limit, or memory that someone else
holds; what would help, what would not, and what to run next. A snapshot that
ends in an OOM works too.`,
		Example: `  allocsim diagnose error.log
  python train.py 2>&1 | allocsim diagnose
  allocsim diagnose --text "CUDA out of memory. Tried to allocate 1.79 GiB …"
  allocsim diagnose snapshot.pickle`,
		Args: arguments(0, 1, "one file"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := env.parse(cmd); err != nil {
				return err
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
			var msg diagnose.Message
			switch {
			case text != "":
				msg, err = diagnose.Parse(text)
			case len(args) == 0 || args[0] == "-":
				msg, err = interruptible(cmd.Context(), func() (diagnose.Message, error) { return a.message(a.stdin) })
			default:
				msg, err = env.diagnosed(cmd.Context(), args[0], &opts)
			}
			if err != nil {
				return err
			}
			return a.showDiagnosis(diagnose.Diagnose(msg, opts), words)
		},
	}
	env.addTrace(cmd)
	cmd.Flags().StringVar(&text, "text", "", "the `MESSAGE` itself")
	cmd.Flags().StringVar(&env.conf, "conf", "", "the configuration `STRING` that was set")
	return cmd
}

// message reads a message from a stream.
func (a *app) message(r io.Reader) (diagnose.Message, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxMessage))
	if err != nil {
		return diagnose.Message{}, fmt.Errorf("read the message: %w", err)
	}
	return diagnose.Parse(string(data))
}

// messageIn reads a message from a file and reports whether it is a text at
// all: what holds zero bytes is not.
func (a *app) messageIn(path string) (msg diagnose.Message, text bool, err error) {
	f, err := os.Open(path)
	if err != nil {
		return msg, false, err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	head, err := r.Peek(512)
	if err != nil && err != io.EOF {
		return msg, false, err
	}
	msg, err = a.message(r)
	return msg, !bytes.ContainsRune(head, 0), err
}

// diagnosed reads a file: a text with a message, or a recording.
func (e *environment) diagnosed(ctx context.Context, path string, opts *diagnose.Options) (diagnose.Message, error) {
	var text bool
	msg, err := interruptible(ctx, func() (msg diagnose.Message, err error) {
		msg, text, err = e.a.messageIn(path)
		return msg, err
	})
	if err == nil || ctx.Err() != nil {
		return msg, err
	}
	tr, openErr := e.open(ctx, path)
	switch {
	case openErr != nil && !text:
		return msg, openErr
	case errors.Is(err, diagnose.ErrNoMessage) && openErr != nil:
		return msg, fmt.Errorf("%s: %w", path, err)
	case openErr != nil:
		return msg, err
	}
	rec, err := recovery.Recover(ctx, tr, recovery.Options{Conf: e.conf, ConfSet: e.confSet, Version: opts.Version})
	if err != nil {
		return msg, err
	}
	res, err := sim.Run(ctx, rec.Trace, rec.Config())
	if err != nil {
		return msg, err
	}
	if n := res.Stats.NumAllocRetries; len(res.OOMs) == 0 && n > 0 {
		closest := ""
		if most := res.Room(); most > 0 {
			closest = fmt.Sprintf(" (at most %s of %s reserved)", size(res.Stats.ReservedBytes[policies.All].Peak), size(most))
		}
		return msg, fmt.Errorf("%s has no out-of-memory event, but it was close: the allocator had to empty its cache %s%s; allocsim tune %s says what would avoid that",
			path, plural.Of(int(n), "time"), closest, path)
	}
	if len(res.OOMs) == 0 {
		return msg, fmt.Errorf("%s has no out-of-memory event; allocsim tune %s says what its memory could be", path, path)
	}
	o := res.OOMs[0]
	opts.Conf, opts.Trace = rec.Conf, path
	opts.Version = rec.Version
	_, segment := rec.Policy.Sizes(o.Requested)
	facts := diagnose.Facts{
		// The message names the segment, not the tensor.
		Requested: segment,
		Reserved:  o.Reserved, Allocated: o.Allocated,
		DeviceFree: o.DeviceFree, Total: tr.Meta.DeviceTotal, Limit: rec.Limit, LargestFree: o.LargestFree, GPU: tr.Device,
	}
	return diagnose.FromFacts(facts), nil
}

func (a *app) showDiagnosis(r diagnose.Report, words bool) error {
	if a.json {
		return a.printJSON(r)
	}
	verdict := string(r.Verdict)
	for i, v := range r.Also {
		if verdict += ", "; i == len(r.Also)-1 {
			verdict += "and "
		}
		verdict += string(v)
	}
	a.printf("%s\n%s\n\n", a.strong(verdict), wrap(r.Reason, 80, ""))
	t := table.New("", ">")
	row := func(name string, n *int64) {
		if n != nil {
			t.Row(name, size(*n))
		}
	}
	n := r.Numbers
	row("requested", n.Requested)
	row("total", n.Total)
	row("free", n.Free)
	row("allocated", n.Allocated)
	row("reserved", n.Reserved)
	row("reserved but unallocated", n.Unallocated)
	row("in private pools", n.PrivatePools)
	row("allowed", n.Allowed)
	row("outside this allocator", n.Outside)
	row("other processes", n.OtherProcesses)
	row("largest free block", n.LargestFree)
	// Below a limit, the room on the device says nothing.
	if n.Short != nil && r.Verdict != diagnose.Limit {
		if *n.Short > 0 {
			row("short even without waste", n.Short)
		} else {
			t.Row("to spare without waste", size(-*n.Short))
		}
	}
	if err := a.print(t); err != nil {
		return err
	}
	a.printf("\n")
	for i, s := range r.Advice {
		if s != "next: "+r.Next {
			a.printf("%s\n", wrap(fmt.Sprintf("%d. %s", i+1, s), 80, "   "))
		}
	}
	// Commands are for copying, so they are not wrapped.
	if r.Next != "" {
		a.printf("\nnext:\n  %s\n", strings.NewReplacer(" && ", "\n  ", "; ", "\n  ").Replace(r.Next))
	}
	if words {
		a.printf("\n%s\n", strings.Join(diagnose.Glossary, "\n"))
	}
	a.notes(r.Notes)
	return nil
}
