package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"allocsim/validate/record"
)

func newRecord(a *app) *cobra.Command {
	var out string
	plain, frames := record.Measured.MicrosecondsPerEvent()
	cmd := &cobra.Command{
		Use:   "record",
		Short: "Print the Python module that records a job",
		Long: fmt.Sprintf(`Prints a small Python module that records what your program asks of its
allocator, and writes the snapshot and its sidecar at the end and at the first
out-of-memory error. Run the program under it, as it is:

    allocsim record -o %[1]s
    python %[1]s -o job train.py --its --own --arguments
    allocsim tune job.pickle            # job.json is found beside it

or start it in the program, before the model exists, and mark iterations, which
gives figures per iteration and finds leaks:

    import allocsim_record
    recorder = allocsim_record.start("job")
    for batch in loader:
        ...
        recorder.step()

Without the GPU: the program runs on tensors without memory, for the card that
you name, and every command reads the result as a recording:

    python %[1]s --dry-run --gpu H100 -o job train.py --its --args
    allocsim tune job.dryrun

It needs PyTorch 2.1 or newer and nothing else. Cost an event:
%.2[3]f µs, %.2[4]f µs with frames=True (Python stacks, which say who holds the
memory); about %.0[5]f bytes of host memory and %.0[6]f bytes of file.
Measured on %[2]s.`,
			record.FileName, record.Measured.Machine, plain, frames, record.Measured.HostBytes, record.Measured.FileBytes),
		Example: `  allocsim record -o allocsim_record.py
  allocsim record > allocsim_record.py`,
		Args: arguments(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.json && (out == "" || out == "-") {
				return a.printJSON(struct {
					Name   string `json:"name"`
					Script string `json:"script"`
				}{record.FileName, record.Script})
			}
			if out == "" || out == "-" {
				return writeText(record.Script)(a.stdout)
			}
			if !strings.HasSuffix(out, ".py") {
				return fmt.Errorf("%s: what is written is a Python module, called %s; the recording is written by python %[2]s -o NAME", out, record.FileName)
			}
			file, err := a.output(cmd, "output", recorderKind)
			if err != nil {
				return err
			}
			return file.Write(writeText(record.Script))
		},
	}
	addOutput(cmd, &out, "output", "o", "write to `FILE` (it must be called "+record.FileName+")")
	return cmd
}
