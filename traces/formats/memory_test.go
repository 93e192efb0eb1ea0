package formats

import (
	"runtime"
	"time"
)

// memoryPeak samples how much the heap grows.
type memoryPeak struct{}

// watch starts sampling; the result stops it and returns the highest growth in
// bytes.
func (*memoryPeak) watch() func() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	base := int64(m.HeapInuse)
	done, result := make(chan struct{}), make(chan int64)
	go func() {
		peak := int64(0)
		for {
			select {
			case <-done:
				result <- peak
				return
			case <-time.After(2 * time.Millisecond):
				runtime.ReadMemStats(&m)
				peak = max(peak, int64(m.HeapInuse)-base)
			}
		}
	}()
	return func() int64 {
		close(done)
		return <-result
	}
}
