package roster

import (
	"math"

	"github.com/hashicorp/go-hclog"

	"fleetd/wait"
)

// clone takes a message of another gateway with our host id and key, such as
// one on a copy of our data directory.
func (r *Roster) clone(m message) {
	r.stats.Clones++
	if _, told := r.clones[m.Boot]; !told && len(r.clones) < 100 {
		r.clones[m.Boot] = struct{}{}
		r.note(hclog.Error, "another gateway announces itself with our host id and key; give one of the two another id", "host", m.host, "its_boot", m.Boot, "our_boot", r.self.boot)
	}
	if m.Boot > r.self.boot && m.Boot > r.rival {
		r.rival = m.Boot
		wait.Poke(r.kick) // the speaker knows whether we serve
	}
}

// outrank takes a boot epoch above that of a rival, whose word would count
// instead of ours for good (design §8). Only who serves may call it: of two
// gateways with one host id only one holds the claim, so they do not chase each
// other, and each boot of the rival is answered once.
func (r *Roster) outrank(at moment) {
	r.mu.Lock()
	defer r.unlock()
	if r.rival <= r.self.boot || r.rival == math.MaxUint64 || !r.out.joined || r.out.leaving {
		return
	}
	boot := r.rival + 1
	if ms := at.wall.UnixMilli(); ms > 0 && uint64(ms) > boot { // as at a start (design §1)
		boot = uint64(ms)
	}
	r.note(hclog.Warn, "this gateway holds the claim on its host id again and takes a boot epoch above the other one's, so that other hosts believe it", "boot", boot, "its_boot", r.rival)
	r.self.boot, r.boots = boot, append(r.boots, boot)
	r.wantFull(at.mono)
	r.changed()
	if r.cfg.KeepBoot != nil {
		r.unkept = boot
		wait.Poke(r.saveNow)
	}
}

// keepBoot has the boot epoch stored that was taken last; what fails stays due.
func (r *Roster) keepBoot() {
	r.mu.Lock()
	boot := r.unkept
	r.mu.Unlock()
	if boot == 0 {
		return
	}
	if err := r.cfg.KeepBoot(boot); err != nil {
		r.log.Error("the new boot epoch could not be stored; trying again until it works", "boot", boot, "error", err)
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unkept == boot {
		r.unkept = 0
	}
}
