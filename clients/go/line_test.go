package redislock

import "testing"

func called(p *place) bool {
	select {
	case <-p.turn:
		return true
	default:
		return false
	}
}

func TestWaitersAskInTheOrderOfTheirCalls(t *testing.T) {
	ls := &lines{lines: map[string]*line{}, most: 2}
	second, third, first := ls.join("k", 12, false), ls.join("k", 13, false), ls.join("k", 11, false)
	if first.mayAsk() != mayAsk || second.mayAsk() != afterOthers || third.mayAsk() != notYet {
		t.Fatal("not in their order")
	}
	first.sends()
	if !called(second) || second.mayAsk() != mayAsk || called(third) {
		t.Fatal("the one behind is not called")
	}
	second.sends()
	second.asked(101, 1)
	first.asked(100, 1)
	first.leave()
	if !called(second) || !called(third) || third.mayAsk() != mayAsk {
		t.Fatal("nobody moves up")
	}
	second.leave()
	third.leave()
	if len(ls.lines) != 0 {
		t.Fatal("a line is left")
	}
}

func TestAnEarlierCallThatJoinsLateStandsInTheQueueOnceThereIsRoom(t *testing.T) {
	ls := &lines{lines: map[string]*line{}, most: 2}
	second, third := ls.join("k", 12, false), ls.join("k", 13, false)
	second.sends()
	if third.mayAsk() != mayAsk {
		t.Fatal("there is room for two")
	}
	first := ls.join("k", 11, false)
	if first.mayAsk() != notYet || third.mayAsk() != mayAsk {
		t.Fatal("a third one stands in the queue, for its call was earlier")
	}
	third.sends()
	third.asked(101, 1)
	second.asked(100, 1)
	if called(first) {
		t.Fatal("it is called though there is no room")
	}
	third.leave()
	if !called(first) || first.mayAsk() != mayAsk {
		t.Fatal("it is not called though there is room")
	}
}

func TestAllAskAgainInTheirOrderOverAnotherConnection(t *testing.T) {
	for _, over := range [][2]uint64{{1, 2}, {2, 1}} {
		ls := &lines{lines: map[string]*line{}, most: 8}
		var places []*place
		for number := range uint64(4) {
			p := ls.join("k", number, false)
			p.sends()
			p.asked(100+number, over[0])
			places = append(places, p)
		}
		if places[0].watch(&link{number: over[0]}) == nil {
			t.Fatal("nothing is watched")
		}
		for _, p := range places {
			called(p)
		}
		places[0].asked(200, over[1])
		if _, isWatched := places[0].isFirst(); isWatched {
			t.Fatal("the other server tells of nothing yet")
		}
		for number := uint64(1); number < 4; number++ {
			if p := places[number]; !called(p) || p.mayAsk() != mayAsk {
				t.Fatalf("%d may not ask", number)
			}
			for _, behind := range places[number+1:] {
				if called(behind) || behind.mayAsk() != afterOthers {
					t.Fatal("one behind may ask")
				}
			}
			places[number].asked(200+number, over[1])
		}
	}
}

func TestNamedOwnersKeepNobodyFromTheServersQueue(t *testing.T) {
	ls := &lines{lines: map[string]*line{}, most: 1}
	for number := range uint64(3) {
		named := ls.join("k", number, true)
		named.sends()
		named.asked(100+number, 1)
	}
	first, second := ls.join("k", 10, false), ls.join("k", 11, false)
	if first.mayAsk() != mayAsk || second.mayAsk() != notYet {
		t.Fatal("one of those without a name may stand there")
	}
	called(second)
	first.leave()
	if !called(second) || second.mayAsk() != mayAsk {
		t.Fatal("nobody moves up")
	}
}

func TestANamedOwnerIsCalledWhenThoseAheadHaveAskedAgain(t *testing.T) {
	ls := &lines{lines: map[string]*line{}, most: 2}
	one, two := ls.join("k", 1, false), ls.join("k", 2, false)
	for number, p := range []*place{one, two} {
		p.sends()
		p.asked(100+uint64(number), 1)
	}
	one.asked(200, 2)
	named := ls.join("k", 3, true)
	if named.mayAsk() != afterOthers {
		t.Fatal("it passes one that has to ask again")
	}
	two.asked(201, 2)
	if !called(named) || named.mayAsk() != mayAsk {
		t.Fatal("it is not called")
	}
}

func TestAWaiterThatHasToAskAgainIsCalledBehindOneThatHasNot(t *testing.T) {
	ls := &lines{lines: map[string]*line{}, most: 8}
	var places []*place
	for number := range uint64(3) {
		p := ls.join("k", number, false)
		p.sends()
		p.asked(100+number, 1)
		places = append(places, p)
	}
	places[1].asked(200, 2) // by itself, as its place would lapse
	if called(places[2]); places[2].mayAsk() != afterOthers {
		t.Fatal("it passes one that has to ask again")
	}
	places[0].asked(201, 2)
	if !called(places[2]) || places[2].mayAsk() != mayAsk {
		t.Fatal("the chain of calls ends at one that need not ask")
	}
}

func TestANewWaiterIsCalledBehindOneThatAskedOverTheNewConnectionFirst(t *testing.T) {
	ls := &lines{lines: map[string]*line{}, most: 8}
	old, first := ls.join("k", 1, false), ls.join("k", 2, false)
	old.sends()
	old.asked(100, 1)
	first.sends()
	first.asked(200, 2)
	second := ls.join("k", 3, false)
	if second.mayAsk() != afterOthers {
		t.Fatal("it passes one that has to ask again")
	}
	old.asked(201, 2)
	if !called(second) || second.mayAsk() != mayAsk {
		t.Fatal("it is not called")
	}
}
