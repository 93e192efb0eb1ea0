package dryrun_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"allocsim/traces"
	"allocsim/traces/dryrun"
)

const head = `{"allocsim_dryrun":1,"torch":"2.11.0","program":["train.py"],"gpu":{"name":"NVIDIA H200","major":9,"total_memory":150109880320,"sms":132},"conf":"","world_size":1}` + "\n"

const trailer = `{"end":{"complete":true,"error":"","assumptions":[],"notes":[]}}` + "\n"

func read(t *testing.T, lines string) *traces.Trace {
	t.Helper()
	rec, err := dryrun.Read(context.Background(), strings.NewReader(head+lines+trailer), "job.dryrun")
	if err != nil {
		t.Fatal(err)
	}
	return rec.Devices[0]
}

// requests prints the events: +bytes, -bytes, what waits with a tilde.
func requests(tr *traces.Trace) string {
	var b strings.Builder
	sizes := make([]int64, tr.NumBlocks)
	for _, e := range tr.Events {
		switch e.Kind {
		case traces.Alloc:
			sizes[e.ID] = e.Size
			fmt.Fprintf(&b, " +%d", e.Size)
			if s := tr.Streams[e.Stream]; s != 0 {
				fmt.Fprintf(&b, "@%d", s)
			}
			if e.Pool != 0 {
				fmt.Fprintf(&b, "p%d", tr.Pools[e.Pool][1])
			}
		case traces.Free:
			fmt.Fprintf(&b, " -%d", sizes[e.ID])
		case traces.FreeRequested:
			fmt.Fprintf(&b, " ~%d", sizes[e.ID])
		case traces.FreeCompleted:
			fmt.Fprintf(&b, " .%d", sizes[e.ID])
		default:
			fmt.Fprintf(&b, " %s", e.Kind)
		}
	}
	return strings.TrimSpace(b.String())
}

const (
	x = `{"T":1,"s":1,"d":"f32","z":[8,64]}
{"op":"aten::zeros","a":{"device":"cuda"},"r":["%1"],"new":[[1,2048]]}
`
	w = `{"T":2,"s":2,"d":"f32","z":[32,64]}
{"op":"aten::zeros","a":{"device":"cuda"},"r":["%2"],"new":[[2,8192]]}
{"T":3,"s":2,"d":"f32","z":[64,32],"st":[1,64]}
{"op":"aten::t","a":{"self":"%2"},"r":["%3"]}
`
)

func TestRead(t *testing.T) {
	for _, c := range []struct{ name, lines, want string }{
		{"a storage lives until it is freed", x + `{"f":[1]}`, "+2048 -2048"},
		{"cuBLAS's workspace once for each thread and stream", x + w + `{"T":4,"s":4,"d":"f32","z":[8,32]}
{"op":"aten::mm","a":{"self":"%1","mat2":"%3"},"r":["%4"],"new":[[4,1024]]}
{"T":5,"s":5,"d":"f32","z":[8,32]}
{"op":"aten::mm","a":{"self":"%1","mat2":"%3"},"r":["%5"],"new":[[5,1024]]}
{"T":6,"s":6,"d":"f32","z":[8,32]}
{"op":"aten::mm","th":1,"a":{"self":"%1","mat2":"%3"},"r":["%6"],"new":[[6,1024]]}
{"T":7,"s":7,"d":"f32","z":[8,32]}
{"op":"aten::mm","st":3,"a":{"self":"%1","mat2":"%3"},"r":["%7"],"new":[[7,1024]]}`,
			"+2048 +8192 +1024 +33554432 +1024 +1024 +33554432 +1024@3 +33554432@3"},
		{"results in the order of CUDA", x + `{"T":4,"s":4,"d":"f32","z":[8,64]}
{"T":5,"s":5,"d":"bool","z":[8,64]}
{"op":"aten::native_dropout","a":{"input":"%1","p":0.1,"train":true},"r":["%4","%5"],"new":[[4,2048],[5,512]]}`,
			"+2048 +512 +2048"},
		{"a block used on another stream waits for it", x + `{"rs":1,"st":2}
{"f":[1]}
{"ev":"sync","st":0}
{"T":4,"s":4,"d":"f32","z":[16]}
{"op":"aten::zeros","a":{"device":"cuda"},"r":["%4"],"new":[[4,64]]}
{"ev":"sync","st":2}`, "+2048 ~2048 +64 .2048"},
		{"and at the latest until the next step", x + `{"rs":1,"st":2}
{"f":[1]}
{"ev":"step","n":0}`, "+2048 ~2048 .2048"},
		{"record_stream on the block's own stream is nothing", x + `{"rs":1,"st":0}
{"f":[1]}`, "+2048 -2048"},
		{"resize to nothing and back", x + `{"resize":1,"to":0}
{"resize":1,"to":4096}
{"f":[1]}`, "+2048 -2048 +4096 -4096"},
		{"a resized storage asks first and gives back then", x + `{"resize":1,"to":4096}`, "+2048 +4096 -2048"},
		{"pools", `{"ev":"pool_begin","pool":7}` + "\n" + x + `{"ev":"pool_end","pool":7}
{"f":[1]}
{"ev":"empty_cache"}`, "+2048p7 -2048 empty_cache"},
		{"tensors of the CPU are not the GPU's", `{"T":1,"s":0,"d":"f32","z":[64,64]}
{"T":2,"s":0,"d":"f32","z":[64,64]}
{"op":"aten::mm","a":{"self":"%1","mat2":"%1"},"r":["%2"]}`, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := requests(read(t, c.lines+"\n")); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	tr := read(t, x+`{"T":2,"s":2,"d":"f32","z":[16]}
{"op":"mine::attention","a":{"x":"%1"},"r":["%2"],"new":[[2,64]]}
`)
	for i, want := range []string{"Evidence: dry run. train.py", "1 calls of 1 operations have no rule"} {
		if i >= len(tr.Notes) || !strings.HasPrefix(tr.Notes[i], want) {
			t.Errorf("note %d: want %q in %q", i, want, tr.Notes)
		}
	}
	rec, err := dryrun.Read(context.Background(), strings.NewReader(head+x), "job.dryrun")
	if err != nil {
		t.Fatal(err)
	}
	if n := rec.Devices[0].Notes; len(n) < 2 || !strings.Contains(n[1], "incomplete") {
		t.Errorf("a file without its last line: %q", n)
	}
	if tr.Meta.DeviceTotal != 150109880320 || !tr.Meta.Sidecar || tr.Format != "dry-run" {
		t.Errorf("%+v", tr.Meta)
	}
}

// TestStacks demands the program's frames under the operation.
func TestStacks(t *testing.T) {
	tr := read(t, `{"F":1,"file":"train.py","line":12,"fn":"main"}
{"K":5,"fr":[1]}
`+strings.Replace(x, `"new"`, `"k":5,"new"`, 1))
	st := tr.Stacks.Stack[tr.Stacks.ByBlock[0]]
	if len(st) != 2 || tr.Stacks.Frames[st[0]].Function != "aten::zeros" || tr.Stacks.Frames[st[1]].Line != 12 {
		t.Errorf("%v %v", st, tr.Stacks.Frames)
	}
}

func TestHostile(t *testing.T) {
	for _, c := range []struct{ lines, want string }{
		{`{"T":1,"s":1,"d":"f32","z":[-1]}`, "line 2: a tensor of shape"},
		{`{"T":1,"s":1,"d":"f32","z":[4611686018427387904,4611686018427387904]}`, "line 2: a tensor of shape"},
		{`{"T":1,"s":1,"d":"f32","z":[4],"st":[1,1]}`, "1 dimensions with 2 strides"},
		{`{"op":"aten::mm","a":{"self":"%9"}}`, "tensor %9 is not defined"},
		{`{"op":"aten::zeros","r":[],"new":[[1,-5]]}`, "has -5 bytes"},
		{`{"op":"aten::zeros","r":[],"new":[[1,4611686018427387904]]}`, "bytes"},
		{x + `{"op":"aten::zeros","r":[],"new":[[1,5]]}`, "exists already"},
		{`{"K":1,"fr":[7]}`, "frame 7 is not defined"},
		{`{"op":"x","a":{"y":[[[[[[[[[[[[1]]]]]]]]]]]]}}`, "nested"},
		{`{"T":"one"}`, "a string where another kind of value belongs"},
		{`nonsense`, "no JSON object"},
		{`{"op":1}`, "line 2"},
	} {
		_, err := dryrun.Read(context.Background(), strings.NewReader(head+c.lines+"\n"+trailer), "f")
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s\n got %v\nwant %s", c.lines, err, c.want)
		}
	}
	if _, err := dryrun.Read(context.Background(), strings.NewReader(`{"allocsim_dryrun":2}`), "f"); err == nil || !strings.Contains(err.Error(), "format 2") {
		t.Errorf("a newer format: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := dryrun.Read(ctx, strings.NewReader(head+x), "f"); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(head + x + w + trailer)
	f.Add(head + `{"F":1,"file":"a.py","line":1,"fn":"f"}` + "\n" + `{"K":1,"fr":[1]}` + "\n" + x + `{"rs":1,"st":2}` + "\n" + `{"f":[1]}`)
	f.Add(head + x + `{"T":4,"s":4,"d":"f16","z":[2,3,8,8]}` + "\n" + `{"op":"aten::convolution_backward","a":{"grad_output":"%4","input":"%4","weight":"%4","groups":0},"r":["%4",null,"%4"],"new":[[4,768]]}`)
	f.Fuzz(func(t *testing.T, s string) {
		rec, err := dryrun.Read(context.Background(), strings.NewReader(s), "fuzz")
		if err == nil && rec.Devices[0].NumBlocks > 40*(len(s)+1) {
			t.Fatalf("%d blocks from %d bytes", rec.Devices[0].NumBlocks, len(s))
		}
	})
}
