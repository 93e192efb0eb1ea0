package report_test

import (
	"bytes"
	"context"
	"fmt"

	"allocsim/planner"
	"allocsim/planner/gpus"
	"allocsim/plots/report"
	"allocsim/sim/recovery"
	"allocsim/traces/formats"
)

// One HTML file with everything about a recording.
func ExampleWrite() {
	ctx := context.Background()
	file, err := formats.Open(ctx, "../../testdata/recordings/fuzz0063.pickle.zst", formats.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	trace, err := file.Device(-1)
	if err != nil {
		fmt.Println(err)
		return
	}
	rec, err := recovery.Recover(ctx, trace, recovery.Options{})
	if err != nil {
		fmt.Println(err)
		return
	}
	input := report.Input{Name: "fuzz0063", Job: planner.Recorded(rec)}
	var page bytes.Buffer
	res, err := report.Write(ctx, &page, []report.Input{input}, report.Options{Cards: gpus.All()})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(res.Tuning.Verdict)
	fmt.Println("needs the network:", bytes.Contains(page.Bytes(), []byte("<script src=")))
	// Output:
	// improved
	// needs the network: false
}
