// Package progress shows how far long work has come: a bar with rate and time
// left on a terminal, once the work has taken a second, and nothing elsewhere.
package progress

import (
	"io"
	"os"
	"time"

	"github.com/schollz/progressbar/v3"
	"golang.org/x/term"
)

// Bar reports one piece of work. A nil *Bar does nothing.
type Bar struct {
	w     io.Writer
	what  string
	bytes bool
	start time.Time
	bar   *progressbar.ProgressBar
}

// New returns a bar on w, or nil if w is no terminal. unit "bytes" shows sizes
// and MB/s.
func New(w io.Writer, what, unit string) *Bar {
	f, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return nil
	}
	return &Bar{w: w, what: what, bytes: unit == "bytes", start: time.Now()}
}

// quiet is how long work may take before it is worth a bar.
const quiet = time.Second

// Set reports done of total; total 0 is unknown.
func (b *Bar) Set(done, total int64) {
	if b == nil || b.bar == nil && time.Since(b.start) < quiet {
		return
	}
	if b.bar == nil {
		if total <= 0 {
			total = -1
		}
		b.bar = progressbar.NewOptions64(total,
			progressbar.OptionSetWriter(b.w),
			progressbar.OptionSetDescription(b.what),
			progressbar.OptionShowCount(),
			progressbar.OptionShowIts(),
			progressbar.OptionShowBytes(b.bytes),
			progressbar.OptionSetPredictTime(true),
			progressbar.OptionSetWidth(20),
			progressbar.OptionThrottle(100*time.Millisecond),
			progressbar.OptionClearOnFinish(),
		)
	}
	_ = b.bar.Set64(done) // a terminal that went away is no reason to stop
}

// Done removes the bar.
func (b *Bar) Done() {
	if b != nil && b.bar != nil {
		_ = b.bar.Finish()
	}
}
