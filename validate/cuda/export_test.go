package cuda

import "time"

// Held is what the books say the policy holds.
func Held(d *Device) int64 { return d.held }

// SetDriver replaces the driver under a device.
func SetDriver(d *Device, drv Driver) { d.drv = drv }

// AddLatency adds a sample.
func AddLatency(l *Latencies, c Call, size int64, pieces int, t time.Duration) {
	l.add(c, size, pieces, t)
}
