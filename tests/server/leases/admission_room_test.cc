// SPDX-License-Identifier: Apache-2.0
// What an admission does where the machine has less DEVICE than the budget says.
#include "tests/server/leases/admission_fixture.h"

namespace gemini::server {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST_F(AdmissionTest, ANewcomerHasNoMoreDeviceThanTheMachineHas) {
  room_ = 30;
  Open(1, Device(60), Device(40));
  Open(2, Device(60), Device(30));
  room_ = -5;  // Less than was promised.
  Open(3, Device(10), Device(1));
  Open(4, {{0, 10, 0}}, {{0, 10, 0}});
  EXPECT_THAT(Told(),
              ElementsAre("refuse 1: DEVICE", "admit 2: 30", "refuse 3: DEVICE", "admit 4: 0"));
}

// As when a job is started again right after it was killed.
TEST_F(AdmissionTest, WhereTheMachineLacksDeviceANewcomerWaitsForWhatIsReclaimed) {
  Hold(1, {{30, 400, 0}}, {{30, 400, 0}}, false);
  Hold(2, {{0, 300, 0}}, {{0, 300, 0}}, false);
  for (const uint64_t leaving : {1, 2}) {  // DEVICE and HOST may be the same memory.
    book_.BeginReclaim(leaving);
    room_ = 10;
    Open(leaving + 10, Device(40), Device(20));
    admission_.TryWaiting();
    EXPECT_THAT(Told(), ElementsAre(absl::StrCat("patience ", leaving + 10)));
    book_.FinishReclaim(leaving);
    room_ = 100;
    admission_.TryWaiting();
    EXPECT_THAT(Told(), ElementsAre(absl::StrCat("admit ", leaving + 10, ": 40")));
  }
}

TEST_F(AdmissionTest, WhereOthersGoOnGivingMemoryBackTheWaitForItEnds) {
  Hold(1, {{0, 400, 0}}, {{0, 400, 0}}, false);
  book_.BeginReclaim(1);
  room_ = 10;
  Open(2, Device(40), Device(20));
  Open(3, Device(40), Device(5));
  EXPECT_THAT(Told(), ElementsAre("patience 2", "patience 3"));
  EXPECT_TRUE(admission_.EndPatience(2));
  EXPECT_TRUE(admission_.EndPatience(3));
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("refuse 2: DEVICE", "admit 3: 10"));
}

TEST_F(AdmissionTest, WhereTheMachineLacksDeviceOthersGiveWay) {
  room_ = 60;
  Hold(1, Device(100), Device(10));
  room_ = 0;  // It is promised what there is, 60 of a budget of 100.
  Open(2, Device(100), Device(20));
  // Each has an equal part of what there is, and not of the budget.
  EXPECT_THAT(Told(), ElementsAre("target 1: 30", "patience 2"));
  // What it vacated is promised to the one it gave way for.
  book_.FinishVacating(book_.VacateDevice(1));
  room_ = 30;
  Open(3, Device(60), Device(60), false);
  EXPECT_THAT(Told(), ElementsAre("refuse 3: DEVICE"));
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("admit 2: 30"));
}

TEST_F(AdmissionTest, WhereTheMachineLacksDeviceAndNobodyAnswersANewcomerHasWhatThereIs) {
  room_ = 60;
  Hold(1, Device(100), Device(10));
  room_ = 15;
  Open(2, Device(50), Device(10));
  Open(3, Device(50), Device(10));
  EXPECT_THAT(Told(), ElementsAre("target 1: 38", "patience 2", "target 1: 25", "patience 3"));
  room_ = 12;  // Another program took some.
  EXPECT_TRUE(admission_.EndPatience(2));
  EXPECT_TRUE(admission_.EndPatience(3));
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("refuse 2: DEVICE", "admit 3: 12", "target 1: 60"));
}

TEST_F(AdmissionTest, WhereMoreIsPromisedThanTheMachineHasThatIsAskedForToo) {
  Hold(1, Device(60), Device(10));
  room_ = -50;
  Open(2, Device(40), Device(40));  // Needs 90 of the 50 that can be given.
  EXPECT_THAT(Told(), ElementsAre("refuse 2: DEVICE"));
  room_ = kMost;
  Hold(3, Device(40), Device(40));
  room_ = -10;
  Open(4, Device(30), Device(30));
  EXPECT_THAT(Told(), ElementsAre("target 1: 20", "patience 4"));
  room_ = 30;
  Vacate(1);
  EXPECT_THAT(Told(), ElementsAre("admit 4: 30"));
}

TEST_F(AdmissionTest, WhereTheMachineLacksDeviceALittleMoreIsAskedFor) {
  room_ = 80;
  Hold(1, Device(100), Device(5));
  Open(2, Device(64), Device(64));
  EXPECT_THAT(Told(), ElementsAre("target 1: 15", "patience 2"));
  admission_.Drop(2);
  Open(3, Device(75), Device(75));  // No more than there is.
  EXPECT_THAT(Told(), ElementsAre("target 1: 5", "patience 3"));
}

// The first wait is for the kernel, the second for other jobs: each has its time.
TEST_F(AdmissionTest, WhoWaitedForTheMachineInVainHasOthersAsked) {
  Hold(1, Device(60), Device(10));
  Hold(3, {{0, 400, 0}}, {{0, 400, 0}}, false);
  room_ = 0;
  book_.BeginReclaim(3);
  Open(2, Device(30), Device(20));
  EXPECT_THAT(Told(), ElementsAre("patience 2"));
  EXPECT_TRUE(admission_.EndPatience(2));
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("target 1: 30", "patience 2"));
  room_ = 30;
  Vacate(1);
  EXPECT_THAT(Told(), ElementsAre("admit 2: 30"));
}

TEST_F(AdmissionTest, WhatTheMachineLacksForAMomentEndsNoWait) {
  Hold(1, Device(40), Device(20));
  Hold(3, Device(40), Device(40));
  room_ = 15;
  Open(2, Device(35), Device(35));
  EXPECT_THAT(Told(), ElementsAre("target 1: 20", "patience 2"));
  room_ = 1;  // What others compute with, until the end of their step.
  admission_.TryWaiting();
  EXPECT_THAT(Told(), IsEmpty());
  room_ = 35;
  Vacate(1);
  EXPECT_THAT(Told(), ElementsAre("admit 2: 35"));
}

TEST_F(AdmissionTest, WhatTheMachineLacksForAMomentIsNotAskedForTwice) {
  Hold(1, Device(85), Device(5));
  room_ = 15;
  Open(2, Device(35), Device(35));
  EXPECT_THAT(Told(), ElementsAre("target 1: 65", "patience 2"));
  room_ = 1;
  admission_.TryWaiting();
  EXPECT_THAT(Told(), IsEmpty());
  room_ = 21;
  Vacate(1);  // Now it has answered, and the machine still lacks some.
  EXPECT_THAT(Told(), ElementsAre("target 1: 51"));
}

TEST_F(AdmissionTest, LeasesGrowByNoMoreThanTheMachineHas) {
  room_ = 30;
  Hold(1, Device(60), Device(10));
  EXPECT_EQ(Granted(1), 30);
  room_ = 0;
  admission_.TryWaiting();
  EXPECT_THAT(Told(), IsEmpty());
  room_ = 10;
  admission_.TryWaiting();
  room_ = kMost;
  admission_.TryWaiting();
  EXPECT_THAT(Told(), ElementsAre("target 1: 40", "target 1: 60"));
}

}  // namespace
}  // namespace gemini::server
