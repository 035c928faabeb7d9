package fabric

import "time"

// Incast is n senders and one receiver at one switch. It returns the switch and
// the port that all have to share. Flow i runs from sender i.
func (s *Sim) Incast(n int, c HostConfig) (*Switch, *Port) {
	sw := s.AddSwitch()
	to := s.AddHost(sw, c)
	for range n {
		s.AddHost(sw, c)
	}
	s.Route()
	return sw, sw.Port(to)
}

// Pair is two hosts at one switch.
func (s *Sim) Pair(c HostConfig) (*Switch, *Port) { return s.Incast(1, c) }

// Dumbbell is n hosts on each side of a link between two switches, of which the
// port towards the second half of the hosts is returned.
func (s *Sim) Dumbbell(n int, c HostConfig, middle Link) *Port {
	left, right := s.AddSwitch(), s.AddSwitch()
	port, _ := s.Connect(left, right, middle)
	for range n {
		s.AddHost(left, c)
	}
	for range n {
		s.AddHost(right, c)
	}
	s.Route()
	return port
}

// ParkingLot is a row of n links between switches. Hosts 0 and 1 are at its two
// ends; hosts 2+2i and 3+2i are before and behind link i. The ports towards host
// 1 are returned.
func (s *Sim) ParkingLot(n int, c HostConfig, middle Link) (ports []*Port) {
	row := []*Switch{s.AddSwitch()}
	for i := range n {
		row = append(row, s.AddSwitch())
		p, _ := s.Connect(row[i], row[i+1], middle)
		ports = append(ports, p)
	}
	s.AddHost(row[0], c)
	s.AddHost(row[n], c)
	for i := range n {
		s.AddHost(row[i], c)
		s.AddHost(row[i+1], c)
	}
	s.Route()
	return ports
}

// RoundTrip returns the link's delay that gives a round trip of d over so many
// links each way, with packets of that many bytes forth and little back.
func (l Link) RoundTrip(d time.Duration, links, bytes int) Link {
	l.Delay = max(0, (d-time.Duration(float64(links)*l.Rate.Time(bytes)))/time.Duration(2*links))
	return l
}
